//! The table of images, by topic.

mod crashed;
mod features;
mod plain;
mod shapes;

use std::path::Path;

use super::{Judge, Recipe, Step};

/// All recipes: the plain shapes, features one by one, contents, crashes. Names are unique.
#[must_use]
pub fn recipes() -> Vec<Recipe> {
    [plain::RECIPES, features::RECIPES, shapes::RECIPES, crashed::RECIPES].concat()
}

/// A recipe with its required fields; the functions below set the others.
const fn image(name: &'static str, size: &'static str, mke2fs: &'static [&'static str]) -> Recipe {
    Recipe { name, mke2fs, extended: "", size, source: None, steps: &[], judge: Judge::Kernel, journal: None }
}

impl Recipe {
    const fn extended(self, extended: &'static str) -> Self {
        Self { extended, ..self }
    }

    const fn source(self, fill: fn(&Path)) -> Self {
        Self { source: Some(fill), ..self }
    }

    const fn steps(self, steps: &'static [Step]) -> Self {
        Self { steps, ..self }
    }

    const fn journal(self, mke2fs: &'static [&'static str]) -> Self {
        Self { journal: Some(mke2fs), ..self }
    }

    const fn for_debugfs(self) -> Self {
        Self { judge: Judge::Debugfs, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_there_are_enough() {
        let recipes = recipes();
        let names: BTreeSet<&str> = recipes.iter().map(|recipe| recipe.name).collect();
        assert_eq!(names.len(), recipes.len());
        assert!(names.len() >= 70, "{}", names.len());
    }
}
