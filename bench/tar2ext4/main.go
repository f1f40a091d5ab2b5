// tar2ext4 TAR IMAGE: the other side of the from_tar benchmark, nothing but a door to hcsshim's converter.
package main

import (
	"log"
	"os"

	"github.com/Microsoft/hcsshim/ext4/tar2ext4"
)

func main() {
	in, err := os.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	out, err := os.Create(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	if err := tar2ext4.Convert(in, out, tar2ext4.MaximumDiskSize(64<<30)); err != nil {
		log.Fatal(err)
	}
	if err := out.Close(); err != nil {
		log.Fatal(err)
	}
}
