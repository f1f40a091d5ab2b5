module extant

go 1.19
