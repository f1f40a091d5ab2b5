//! `-J` of `extant mkfs`, `build` and `tune`: the sub-options of mke2fs.
//!
//! Owns: their names, and why extant does not take some of them.

/// The largest journal in MiB.
const MIB_MAX: u32 = 1 << 20;

/// Parses the value of `-J`, such as `size=64`; returns the size of the journal in MiB.
pub(crate) fn parse(text: &str) -> Result<u32, String> {
    let mut size = None;
    for word in text.split(',') {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "size" => {
                let mib = value.parse().ok().filter(|mib| *mib <= MIB_MAX);
                size = Some(mib.ok_or_else(|| {
                    format!("\"{value}\" is not a number of mebibytes; the most is size={MIB_MAX}")
                })?);
            }
            "device" => {
                let why = "device= makes an external journal, which extant uses but does not make; \
                           mke2fs -O journal_dev and tune2fs -J device= do";
                return Err(why.to_owned());
            }
            "location" => {
                return Err("location= is not taken: extant chooses the blocks of the journal".to_owned());
            }
            "fast_commit_size" => {
                let why = "fast_commit_size= is not taken: -O fast_commit turns fast commits on, \
                           with the default area";
                return Err(why.to_owned());
            }
            _ => return Err(format!("there is no journal option \"{name}\"; it is size=MEBIBYTES")),
        }
    }
    size.ok_or_else(|| "it is size=MEBIBYTES".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_taken_and_the_other_options_have_a_reason() {
        assert_eq!(parse("size=4"), Ok(4));
        assert_eq!(parse("size=0"), Ok(0));
        for (text, why) in [
            ("size=4,location=100", "extant chooses"),
            ("device=/dev/sdb1", "external journal"),
            ("fast_commit_size=256", "-O fast_commit"),
            ("size=", "not a number of mebibytes"),
            ("size=9999999", "the most is"),
            ("colour=4", "no journal option \"colour\""),
            ("", "no journal option \"\""),
        ] {
            assert!(parse(text).unwrap_err().contains(why), "{text}: {:?}", parse(text));
        }
    }
}
