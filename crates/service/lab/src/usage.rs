//! Parses createmany's own options.
//!
//! ```text
//! {-o [-k] | -m | -d | -l TARGET} [-u[UNLINKFMT]] [-r ALIAS] [-t SECONDS] FILENAMEFMT [[START] COUNT]
//! ```
//! A negative COUNT is the older spelling of `-t`. Letters may be joined, and an option's value may follow
//! directly: `-mt10`.

use std::time::Duration;

use crate::createmany::{Job, Operation};
use crate::names::NameFormat;

/// Parses command-line arguments into a job.
///
/// # Errors
/// An invalid argument; as a message.
pub fn parse(words: &[String]) -> Result<Job, String> {
    let mut operations: Vec<Operation> = Vec::new();
    let mut keep = false;
    let (mut target, mut unlink, mut alias, mut time) = (None, None, None, None);
    let mut positional = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let letters = match word.strip_prefix('-') {
            Some("") | None => {
                positional.push(word.as_str());
                continue;
            }
            // Positional numbers may be negative.
            Some(rest) if !positional.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()) => {
                positional.push(word.as_str());
                continue;
            }
            Some("-") => {
                positional.extend(words.by_ref().map(String::as_str));
                continue;
            }
            Some(long) if long.starts_with('-') => {
                return Err(format!("{word}: options with two dashes come before those of createmany"));
            }
            Some(letters) => letters,
        };
        for (at, letter) in letters.char_indices() {
            let rest = &letters[at + letter.len_utf8()..];
            let mut value = || match rest {
                "" => words.next().cloned().ok_or_else(|| format!("-{letter} needs a word after it")),
                joined => Ok(joined.to_owned()),
            };
            match letter {
                'o' => operations.push(Operation::Open),
                'k' => keep = true,
                'm' => operations.push(Operation::Mknod),
                'd' => operations.push(Operation::Mkdir),
                'l' => {
                    operations.push(Operation::Link);
                    target = Some(value()?);
                    break;
                }
                'u' => {
                    unlink = Some(rest.to_owned());
                    break;
                }
                'r' => {
                    alias = Some(NameFormat::parse(&value()?)?);
                    break;
                }
                't' => {
                    time = Some(seconds(&value()?)?);
                    break;
                }
                other => return Err(format!("-{other} is not an option of createmany")),
            }
        }
    }
    let (format, numbers) = positional.split_first().ok_or("the format of the names is missing")?;
    let format = NameFormat::parse(format)?;
    let number = |word: &str| word.parse::<i64>().map_err(|_| format!("\"{word}\" is not a number"));
    let (start, count) = match *numbers {
        [] => (0, None),
        [count] => (0, Some(number(count)?)),
        [start, count] => (number(start)?, Some(number(count)?)),
        _ => return Err("there are words after the count".to_owned()),
    };
    let count = match count {
        Some(count) if count < 0 => {
            time = Some(Duration::from_secs(count.unsigned_abs()));
            None
        }
        count => count.map(i64::unsigned_abs),
    };
    let operation = match (operations.as_slice(), keep) {
        ([Operation::Open], true) => Operation::OpenKeep,
        ([operation], false) => *operation,
        ([_], true) => return Err("-k goes with -o".to_owned()),
        _ => return Err("one of -o, -m, -d and -l TARGET is needed".to_owned()),
    };
    if operation == Operation::Mkdir && alias.is_some() {
        return Err("a directory has one name: -r does not go with -d".to_owned());
    }
    let unlink = match unlink.as_deref() {
        None => None,
        Some("") => Some(format.clone()),
        Some(own) => Some(NameFormat::parse(own)?),
    };
    let target = target.unwrap_or_default().into_bytes();
    Ok(Job { format, start, count, time, target, unlink, alias, ..Job::new(operation, "") })
}

fn seconds(word: &str) -> Result<Duration, String> {
    let seconds = word.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| format!("-t needs seconds, not \"{word}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Job, String> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_forms_that_are_typed() {
        let job = parsed("-m test 20680000").unwrap();
        assert_eq!((job.operation, job.start, job.count), (Operation::Mknod, 0, Some(20_680_000)));
        let job = parsed("-o -k -t 5 f%d 7 3").unwrap();
        assert_eq!((job.operation, job.start, job.count), (Operation::OpenKeep, 7, Some(3)));
        assert_eq!(job.time, Some(Duration::from_secs(5)));
        let job = parsed("-okt1.5 f").unwrap();
        assert_eq!(
            (job.operation, job.time, job.count),
            (Operation::OpenKeep, Some(Duration::from_millis(1500)), None)
        );
        let job = parsed("-l here -r other%d f 100").unwrap();
        assert_eq!((job.operation, job.target.as_slice()), (Operation::Link, &b"here"[..]));
        assert!(job.alias.is_some());
        let job = parsed("-d -u f -30").unwrap();
        assert_eq!(
            (job.time, job.count, job.word().as_str()),
            (Some(Duration::from_secs(30)), None, "mkdir/rmdir")
        );
        assert_eq!(job.unlink.as_ref(), Some(&job.format));
        let job = parsed("-m -ug%d f -10 5").unwrap();
        assert_eq!((job.start, job.count), (-10, Some(5)));
        assert_eq!(job.unlink, Some(NameFormat::parse("g%d").unwrap()));
        assert_eq!(parsed("-m -- -f 5").unwrap().format, NameFormat::parse("-f").unwrap());
    }

    #[test]
    fn what_makes_no_sense() {
        for (line, says) in [
            ("-m", "format of the names"),
            ("f 5", "one of -o"),
            ("-m -d f", "one of -o"),
            ("-mk f", "-k goes with -o"),
            ("-l", "needs a word"),
            ("-x f", "not an option"),
            ("-m f 1 2 3", "after the count"),
            ("-m f x", "not a number"),
            ("-m -t soon f", "needs seconds"),
            ("-d -r a f", "one name"),
            ("-m --json f", "come before"),
            ("-m %s 5", "conversion"),
        ] {
            assert!(parsed(line).unwrap_err().contains(says), "{line}");
        }
    }
}
