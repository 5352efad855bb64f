//! What a case executes that no other does, and cases that have nothing of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::beside::Beside;
use super::seen::{Kept, ways_of};

/// How many cases execute each instruction, or see a guard not hold, by kernel; those of finite inputs counted once more.
pub struct Counts(BTreeMap<&'static str, Vec<[u32; 4]>>);

/// Something that a case executes: the kernel, the number of the instruction, and which of [`Kept::ways`] it is.
pub type Place = (&'static str, usize, usize);

impl Counts {
    /// Of the cases of the corpus, and of what other tests execute, as if it were one more, of finite inputs.
    pub fn of(kept: &[Kept], beside: &Beside) -> Self {
        let mut counts = Self(BTreeMap::new());
        for one in kept {
            counts.add(one);
        }
        for (kernel, coverage) in beside.kernels() {
            for (index, ways) in ways_of(coverage, true) {
                counts.count(kernel, index, ways);
            }
        }
        counts
    }

    fn count(&mut self, kernel: &'static str, index: usize, ways: [bool; 4]) {
        let of_kernel = self.0.entry(kernel).or_default();
        if of_kernel.len() <= index {
            of_kernel.resize(index + 1, [0; 4]);
        }
        for (count, way) in of_kernel[index].iter_mut().zip(ways) {
            *count += u32::from(way);
        }
    }

    pub fn add(&mut self, one: &Kept) {
        for (kernel, index, ways) in one.ways() {
            self.count(kernel, index, ways);
        }
    }

    /// Takes a case away that was added.
    pub fn remove(&mut self, one: &Kept) {
        for (kernel, index, way) in places(one) {
            self.0.get_mut(kernel).expect("it was added")[index][way] -= 1;
        }
    }

    /// What only `one` executes, of all that were added.
    pub fn own<'a>(&'a self, one: &'a Kept) -> impl Iterator<Item = Place> + 'a {
        places(one).filter(|&(kernel, index, way)| self.0[kernel][index][way] == 1)
    }
}

/// All that a case executes.
pub fn places(one: &Kept) -> impl Iterator<Item = Place> + '_ {
    one.ways().flat_map(|(kernel, index, ways)| {
        let taken = (0..ways.len()).filter(move |way| ways[*way]);
        taken.map(move |way| (kernel, index, way))
    })
}

/// Those of `kept` without which something would not be executed, and the last of a pass by a family, whose results no other case
/// checks; the dearest are left out first.
pub fn without_superfluous(mut kept: Vec<Kept>, beside: &Beside) -> Vec<Kept> {
    let mut counts = Counts::of(&kept, beside);
    let sort = |one: &Kept| (one.case.variant().name(), one.case.is_forward());
    let mut of_sort: BTreeMap<_, usize> = BTreeMap::new();
    for one in &kept {
        *of_sort.entry(sort(one)).or_default() += 1;
    }
    kept.sort_by_key(|one| Reverse(one.time()));
    kept.retain(|one| {
        let left = of_sort.get_mut(&sort(one)).expect("it was counted");
        let is_needed = *left == 1 || counts.own(one).next().is_some();
        if !is_needed {
            counts.remove(one);
            *left -= 1;
        }
        is_needed
    });
    kept
}
