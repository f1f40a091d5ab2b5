//! The owners of files in an image: `--uid-map`, `--gid-map` and `--owner`.
//!
//! Owns the arithmetic of maps and their syntax on the command line. Does **not** own names: `root` or
//! `www-data` mean different numbers on different hosts, so an image built from names would depend on the
//! host that builds it.
//!
//! A map is a list of ranges, each `FROM:TO[:COUNT]`, and at most one catch-all `*:TO`:
//!
//! ```text
//! 1000:0        1000                -> 0
//! 0:100000:1000 0 ... 999           -> 100000 ... 100999
//! *:65534       all other ids        -> 65534
//! ```
//!
//! Invariants
//! 1. An empty map changes nothing. If a map has ranges, an id outside every range is an error, as in a user
//!    namespace. If the id were kept silently, ids of the host would leak into an image whose user meant to
//!    map all of them.
//! 2. No id is the source of two ranges. Several ranges may have the same target.
//! 3. No target is 4294967295. It is (uid_t) -1, which the kernel reads as "no change" and never stores.

use std::str::FromStr;

/// The invalid id: `(uid_t) -1`.
const NO_ID: u32 = u32::MAX;

/// Why a map or an owner is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdMapFault {
    /// The text does not have the expected form.
    #[error("\"{text}\" is not of the form {form}")]
    Form {
        /// The text as given.
        text: String,
        /// The expected form, for the message.
        form: &'static str,
    },
    /// A name instead of a number.
    #[error(
        "\"{text}\" is a name, not a number: names mean different ids on different hosts, and an image holds numbers \
         only (`id -u {text}` or `getent group {text}` shows this host's)"
    )]
    Name {
        /// The name.
        text: String,
    },
    /// A number above 4294967295.
    #[error("{text} is above 4294967295, the largest id")]
    TooLarge {
        /// The number as given.
        text: String,
    },
    /// A range with a count of 0.
    #[error("the range {range} has no ids in it")]
    Empty {
        /// The range as given.
        range: String,
    },
    /// A range extends past the last id.
    #[error("the range {range} runs past the last id (4294967295 itself is reserved as a target)")]
    PastTheEnd {
        /// The range as given.
        range: String,
    },
    /// Two ranges have the same source id.
    #[error("id {id} is in two ranges: {first} and {second}")]
    Overlap {
        /// The lowest id in both ranges.
        id: u32,
        /// One range.
        first: String,
        /// The other.
        second: String,
    },
    /// Two catch-alls.
    #[error("two catch-alls: *:{first} and *:{second}")]
    TwoCatchAlls {
        /// Target of one.
        first: u32,
        /// Target of the other.
        second: u32,
    },
}

/// An id in no range of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("id {0} is in no range of the map (*:TO would map all that are left to TO)")]
pub struct Unmapped(pub u32);

/// One value of `--uid-map` or `--gid-map`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdRange {
    /// `FROM:TO[:COUNT]`.
    Range {
        /// First source id.
        from: u32,
        /// First target id.
        to: u32,
        /// Number of ids, at least 1.
        count: u32,
    },
    /// `*:TO`: every id that is in no range.
    CatchAll {
        /// The target id.
        to: u32,
    },
}

impl std::fmt::Display for IdRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Range { from, to, count: 1 } => write!(f, "{from}:{to}"),
            Self::Range { from, to, count } => write!(f, "{from}:{to}:{count}"),
            Self::CatchAll { to } => write!(f, "*:{to}"),
        }
    }
}

impl FromStr for IdRange {
    type Err = IdMapFault;

    fn from_str(text: &str) -> Result<Self, IdMapFault> {
        let form = || IdMapFault::Form { text: text.to_owned(), form: "FROM:TO, FROM:TO:COUNT or *:TO" };
        let mut parts = text.split(':');
        let (Some(from), Some(to), count, None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(form());
        };
        let past_the_end = || IdMapFault::PastTheEnd { range: text.to_owned() };
        if from == "*" {
            let to = number(to).map_err(|fault| fault.unwrap_or_else(form))?;
            return match count {
                Some(_) => Err(form()),
                None if to == NO_ID => Err(past_the_end()),
                None => Ok(Self::CatchAll { to }),
            };
        }
        let parse = |word| number(word).map_err(|fault| fault.unwrap_or_else(form));
        let (from, to) = (parse(from)?, parse(to)?);
        let count = count.map_or(Ok(1), parse)?;
        if count == 0 {
            return Err(IdMapFault::Empty { range: text.to_owned() });
        }
        // The last source id may be 4294967295, but the last target id may not.
        if from.checked_add(count - 1).is_none() || to.checked_add(count).is_none() {
            return Err(past_the_end());
        }
        Ok(Self::Range { from, to, count })
    }
}

/// Parses a decimal id. Returns `Err(None)` if the text is neither a number nor a name.
fn number(text: &str) -> Result<u32, Option<IdMapFault>> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().map_err(|_| Some(IdMapFault::TooLarge { text: text.to_owned() }));
    }
    let name = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'$'));
    Err(name.then(|| IdMapFault::Name { text: text.to_owned() }))
}

/// A map of user or group ids. The default map changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IdMap {
    /// `(from, to, count)`, ascending by `from`, not overlapping.
    ranges: Vec<(u32, u32, u32)>,
    catch_all: Option<u32>,
}

impl IdMap {
    /// Parses values of the command line, each `FROM:TO`, `FROM:TO:COUNT` or `*:TO`.
    ///
    /// # Errors
    /// See [`IdMapFault`].
    pub fn parse<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> Result<Self, IdMapFault> {
        let ranges =
            values.into_iter().map(|value| value.as_ref().parse()).collect::<Result<Vec<IdRange>, _>>()?;
        Self::from_ranges(ranges)
    }

    /// Builds a map from ranges in any order.
    ///
    /// # Errors
    /// Ranges that overlap, have no ids or extend past the last id, and a second catch-all.
    pub fn from_ranges(values: impl IntoIterator<Item = IdRange>) -> Result<Self, IdMapFault> {
        let mut map = Self::default();
        for value in values {
            match value {
                IdRange::CatchAll { to } => {
                    if to == NO_ID {
                        return Err(IdMapFault::PastTheEnd { range: value.to_string() });
                    }
                    if let Some(first) = map.catch_all.replace(to) {
                        return Err(IdMapFault::TwoCatchAlls { first, second: to });
                    }
                }
                IdRange::Range { count: 0, .. } => {
                    return Err(IdMapFault::Empty { range: value.to_string() });
                }
                IdRange::Range { from, to, count } => {
                    if from.checked_add(count - 1).is_none() || to.checked_add(count).is_none() {
                        return Err(IdMapFault::PastTheEnd { range: value.to_string() });
                    }
                    map.ranges.push((from, to, count));
                }
            }
        }
        map.ranges.sort_unstable();
        for pair in map.ranges.windows(2) {
            let [first, second] = [pair[0], pair[1]];
            if second.0 - first.0 < first.2 {
                let text = |(from, to, count)| IdRange::Range { from, to, count }.to_string();
                return Err(IdMapFault::Overlap { id: second.0, first: text(first), second: text(second) });
            }
        }
        Ok(map)
    }

    /// Whether the map has no ranges and no catch-all, so that it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.catch_all.is_none()
    }

    /// Maps an id.
    ///
    /// # Errors
    /// The id, if the map has ranges, no range contains the id, and there is no catch-all.
    pub fn apply(&self, id: u32) -> Result<u32, Unmapped> {
        if self.is_empty() {
            return Ok(id);
        }
        let after = self.ranges.partition_point(|range| range.0 <= id);
        if let Some(&(from, to, count)) = after.checked_sub(1).and_then(|at| self.ranges.get(at))
            && id - from < count
        {
            // Cannot overflow: to + count fits, and id - from is below count.
            return Ok(to + (id - from));
        }
        self.catch_all.ok_or(Unmapped(id))
    }
}

/// One owner for all files: `--owner UID:GID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Owner {
    /// Parses `UID:GID`.
    ///
    /// # Errors
    /// Anything except two numbers below 4294967295. A name has an error of its own.
    pub fn parse(text: &str) -> Result<Self, IdMapFault> {
        let form = || IdMapFault::Form { text: text.to_owned(), form: "UID:GID, both numbers" };
        let (uid, gid) = text.split_once(':').ok_or_else(form)?;
        let parse = |word| match number(word) {
            Ok(NO_ID) => Err(IdMapFault::TooLarge { text: word.to_owned() }),
            other => other.map_err(|fault| fault.unwrap_or_else(form)),
        };
        Ok(Self { uid: parse(uid)?, gid: parse(gid)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(values: &[&str]) -> Result<IdMap, IdMapFault> {
        IdMap::parse(values)
    }

    #[test]
    fn no_map_changes_nothing() {
        let none = map(&[]).unwrap();
        assert!(none.is_empty());
        assert_eq!(none, IdMap::default());
        for id in [0, 1000, u32::MAX] {
            assert_eq!(none.apply(id), Ok(id));
        }
    }

    #[test]
    fn ids_outside_every_range_are_errors_unless_there_is_a_catch_all() {
        let ranges = map(&["1000:0", "0:100000:1000"]).unwrap();
        assert_eq!(ranges.apply(1000), Ok(0));
        assert_eq!(ranges.apply(0), Ok(100_000));
        assert_eq!(ranges.apply(999), Ok(100_999));
        assert_eq!(ranges.apply(1001), Err(Unmapped(1001)));
        assert!(Unmapped(1001).to_string().contains("1001"));
        let all = map(&["1000:0", "*:65534"]).unwrap();
        assert_eq!(all.apply(1000), Ok(0));
        assert_eq!(all.apply(7), Ok(65_534));
        assert_eq!(map(&["*:0"]).unwrap().apply(u32::MAX), Ok(0));
    }

    #[test]
    fn ranges_reach_the_last_id_and_no_further() {
        let last = map(&["4294967295:5"]).unwrap();
        assert_eq!(last.apply(u32::MAX), Ok(5));
        let whole = map(&["0:0:4294967295"]).unwrap();
        assert_eq!(whole.apply(u32::MAX - 1), Ok(u32::MAX - 1));
        assert_eq!(whole.apply(u32::MAX), Err(Unmapped(u32::MAX)));
        for past in ["4294967295:0:2", "0:4294967295", "5:4294967294:2", "*:4294967295", "1:1:4294967295"] {
            assert!(matches!(map(&[past]), Err(IdMapFault::PastTheEnd { .. })), "{past}");
        }
    }

    #[test]
    fn overlapping_sources_are_refused_and_shared_targets_are_not() {
        assert!(matches!(map(&["10:0:10", "0:50:11"]), Err(IdMapFault::Overlap { id: 10, .. })));
        assert!(matches!(map(&["5:1", "5:1"]), Err(IdMapFault::Overlap { id: 5, .. })));
        assert_eq!(map(&["*:1", "*:2"]), Err(IdMapFault::TwoCatchAlls { first: 1, second: 2 }));
        assert!(map(&["0:50:10", "10:50:10"]).is_ok());
        let empty = IdRange::Range { from: 0, to: 0, count: 0 };
        assert!(matches!(IdMap::from_ranges([empty]), Err(IdMapFault::Empty { .. })));
        let past = IdRange::Range { from: 0, to: u32::MAX, count: u32::MAX };
        assert!(matches!(IdMap::from_ranges([past]), Err(IdMapFault::PastTheEnd { .. })));
    }

    #[test]
    fn what_is_no_number_is_recognized() {
        assert!(matches!(map(&["root:0"]), Err(IdMapFault::Name { .. })));
        assert!(matches!(map(&["0:0:0"]), Err(IdMapFault::Empty { .. })));
        assert!(matches!(map(&["4294967296:0"]), Err(IdMapFault::TooLarge { .. })));
        for bad in ["", "1", "1:", ":1", "1:2:3:4", "-1:0", "+1:0", "0x10:0", "*", "*:1:2", "1: 2"] {
            assert!(matches!(map(&[bad]), Err(IdMapFault::Form { .. })), "{bad}");
        }
    }

    #[test]
    fn owners_are_two_numbers() {
        assert_eq!(Owner::parse("0:0"), Ok(Owner { uid: 0, gid: 0 }));
        assert_eq!(Owner::parse("4294967294:5"), Ok(Owner { uid: 4_294_967_294, gid: 5 }));
        let fault = Owner::parse("root:0").unwrap_err();
        assert!(fault.to_string().contains("names mean different ids"), "{fault}");
        for bad in ["", "0", "0:", ":0", "0:0:0", "4294967295:0", "0:99999999999"] {
            assert!(Owner::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_faults(text in any::<String>(), form in "[0-9*:a-z]{0,14}") {
            let _ = text.parse::<IdRange>();
            let _ = Owner::parse(&text);
            let _ = Owner::parse(&form);
            if let Ok(range) = form.parse::<IdRange>() {
                prop_assert_eq!(range.to_string().parse(), Ok(range));
            }
        }

        #[test]
        fn a_map_does_what_its_ranges_say(
            ranges in proptest::collection::vec((any::<u32>(), any::<u32>(), 1..u32::MAX), 0..5),
            near in any::<u32>(),
            catch_all in proptest::option::of(0..u32::MAX),
        ) {
            let values = ranges.iter().map(|&(from, to, count)| IdRange::Range { from, to, count });
            let Ok(map) = IdMap::from_ranges(values.chain(catch_all.map(|to| IdRange::CatchAll { to }))) else {
                return Ok(());
            };
            let edges = ranges.iter().flat_map(|&(from, _, count)| {
                [from, from.wrapping_sub(1), from.wrapping_add(count - 1), from.wrapping_add(count)]
            });
            for id in edges.chain([0, near, u32::MAX]) {
                let holder = ranges.iter().find(|&&(from, _, count)| id >= from && u64::from(id) < u64::from(from) + u64::from(count));
                let expected = match (holder, catch_all) {
                    (Some(&(from, to, _)), _) => Ok(to + (id - from)),
                    (None, Some(to)) => Ok(to),
                    (None, None) if ranges.is_empty() => Ok(id),
                    (None, None) => Err(Unmapped(id)),
                };
                prop_assert_eq!(map.apply(id), expected);
            }
        }
    }
}
