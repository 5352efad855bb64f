//! Results: a table of classes by families, and the survivors.

use std::collections::BTreeMap;

use super::draw::Mutant;
use super::equivalent::source_text;
use super::operators::Class;
use super::trial::Verdict;

/// Mutants that were noticed, of all that are not known to be equivalent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub noticed: u32,
    pub all: u32,
}

impl Count {
    pub fn add(&mut self, verdict: &Verdict) {
        self.all += 1;
        self.noticed += u32::from(!matches!(verdict, Verdict::Survived(_)));
    }

    pub fn percent(&self) -> f64 {
        f64::from(self.noticed) * 100.0 / f64::from(self.all.max(1))
    }

    fn cell(&self) -> String {
        match self.all {
            0 => "–".to_owned(),
            all => format!("{} of {all}, {:.0} %", self.noticed, self.percent()),
        }
    }
}

/// Counts by class and family.
#[derive(Default)]
pub struct Table(BTreeMap<(Class, &'static str), Count>);

impl Table {
    pub fn add(&mut self, mutant: &Mutant, verdict: &Verdict) {
        let count = self.0.entry((mutant.class, mutant.family)).or_default();
        count.add(verdict);
    }

    /// The counts that `wanted` picks, united.
    fn sum(&self, wanted: impl Fn(Class, &str) -> bool) -> Count {
        let picked = self
            .0
            .iter()
            .filter(|((class, family), _)| wanted(*class, family));
        picked.fold(Count::default(), |sum, (_, count)| Count {
            noticed: sum.noticed + count.noticed,
            all: sum.all + count.all,
        })
    }

    pub fn total(&self) -> Count {
        self.sum(|_, _| true)
    }

    pub fn print(&self) {
        let mut families: Vec<_> = self.0.keys().map(|(_, family)| *family).collect();
        families.sort_unstable();
        families.dedup();
        println!("| noticed | {} | all |", families.join(" | "));
        println!("|---|{}---|", "---|".repeat(families.len()));
        let row = |name: &str, of: &dyn Fn(Class) -> bool| {
            let cells: Vec<_> = families
                .iter()
                .map(|family| self.sum(|class, f| of(class) && f == *family).cell())
                .collect();
            let all = self.sum(|class, _| of(class)).cell();
            println!("| {name} | {} | {all} |", cells.join(" | "));
        };
        for class in Class::ALL {
            row(class.name(), &|c| c == class);
        }
        row("all", &|_| true);
    }
}

/// What one needs to know of a mutant that no test noticed.
pub fn survivor(mutant: &Mutant, tests: usize) -> String {
    let source = mutant.source.as_ref().map_or(String::new(), |place| {
        let text = source_text(mutant).unwrap_or_default();
        format!("\n    {place}: {text}")
    });
    let after = if mutant.after.is_empty() {
        "(nothing)"
    } else {
        &mutant.after
    };
    format!(
        "survived {tests} tests: {} line {}, {}: {}\n    {}\n    {after}{source}",
        mutant.kernel,
        mutant.line,
        mutant.class.name(),
        mutant.operator,
        mutant.before,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_noticed() {
        let mut count = Count::default();
        count.add(&Verdict::Noticed("t".to_owned()));
        count.add(&Verdict::TimedOut("t".to_owned()));
        count.add(&Verdict::Survived(2));
        assert_eq!(count, Count { noticed: 2, all: 3 });
        assert_eq!(count.cell(), "2 of 3, 67 %");
        assert_eq!(Count::default().cell(), "–");
    }
}
