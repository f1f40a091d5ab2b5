//! Recovery problems as text, bounded to a readable number of lines whatever the image holds.

/// Most lines kept. The rest are counted.
const LINES_MAX: usize = 1000;

/// The first lines, and a count of the rest.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    lines: Vec<String>,
    more: u64,
}

impl Problems {
    pub(crate) fn push(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line);
        } else {
            self.more += 1;
        }
    }

    /// The lines, and one more that counts those left out.
    pub(crate) fn into_lines(mut self) -> Vec<String> {
        if self.more > 0 {
            self.lines.push(format!("... and {} more", self.more));
        }
        self.lines
    }
}

impl From<Vec<String>> for Problems {
    fn from(lines: Vec<String>) -> Self {
        let mut problems = Self::default();
        lines.into_iter().for_each(|line| problems.push(line));
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_ends_in_a_count() {
        let mut problems = Problems::from(vec!["one".to_owned(); 990]);
        assert_eq!(Problems::from(vec!["one".to_owned()]).into_lines(), ["one"]);
        (0..100).for_each(|at| problems.push(at.to_string()));
        let lines = problems.into_lines();
        assert_eq!(lines.len(), 1001);
        assert_eq!(lines[1000], "... and 90 more");
    }
}
