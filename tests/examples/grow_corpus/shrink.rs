//! Making dear cases smaller, as long as they execute what no other case does.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use ferroflash::backend::sim::Sim;
use ferroflash_tests::corpus;

use super::own::{Counts, Place, places};
use super::seen::Kept;
use super::{Corpus, Runner, smaller};

/// A version of a case replaces it if it takes so many times less.
const MUCH_LESS: f64 = 1.2;

impl Corpus {
    /// Makes those that take longer than `dear` smaller, the dearest first.
    pub fn shrink(&mut self, dear: Duration) {
        let mut counts = Counts::of(&self.kept, &self.beside);
        self.kept.sort_by_key(|one| Reverse(one.time()));
        let is_dear = |one: &&mut Kept| one.time() > dear;
        for one in self.kept.iter_mut().take_while(is_dear) {
            let own: BTreeSet<_> = counts.own(one).collect();
            let Some(smallest) = self.runner.smallest(one, &own) else {
                continue;
            };
            if let Err(wrong) = corpus::check(&mut self.checked, &smallest.case) {
                println!("WRONG: {}: {wrong}", smallest.case);
                self.checked = Sim::new();
                continue;
            }
            let (before, now) = (one.time(), smallest.time());
            println!("{before:.2?} -> {now:.2?}: {}", smallest.case);
            counts.remove(one);
            counts.add(&smallest);
            *one = smallest;
        }
    }
}

impl Runner {
    /// The smallest version of `one` that is found and executes all of `own`; `None` if `one` itself is.
    fn smallest(&mut self, one: &Kept, own: &BTreeSet<Place>) -> Option<Kept> {
        let mut smallest = self.smaller(one, own)?;
        while let Some(smaller) = self.smaller(&smallest, own) {
            smallest = smaller;
        }
        Some(smallest)
    }

    /// A version of `one` that takes much less time and executes all of `own`.
    fn smaller(&mut self, one: &Kept, own: &BTreeSet<Place>) -> Option<Kept> {
        smaller::versions(&one.case).into_iter().find_map(|case| {
            let (launches, time) = self.run(&case).ok()?;
            let smaller = Kept::new(case, &launches, time);
            let executed = places(&smaller).filter(|place| own.contains(place));
            let is_enough = executed.count() == own.len();
            (is_enough && time.mul_f64(MUCH_LESS) < one.time()).then_some(smaller)
        })
    }
}
