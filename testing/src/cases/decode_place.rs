//! Where the keys of a cache lie.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::fill::mix;

/// Where keys lie.
pub(super) struct Place {
    pub page_size: usize,
    pub pages: usize,
    pub max_pages: usize,
    pub table: Option<Vec<i32>>,
}

impl Place {
    /// Of sequences with `kv_lens` keys. Pages are in an order by `seed`; `slack` chooses how much room nobody uses, 0 for none
    /// but a page. An odd `seed` leaves the first page to nobody: then nothing that is right lies where a cache begins.
    pub fn new(kv_lens: &[usize], page_size: Option<usize>, seed: u64, slack: usize) -> Self {
        let batch = kv_lens.len();
        let longest = kv_lens.iter().copied().max().unwrap_or(0);
        let Some(page_size) = page_size else {
            return Self {
                page_size: longest + slack % 3,
                pages: batch,
                max_pages: 1,
                table: None,
            };
        };
        // The table has room for more pages than the longest sequence needs, and some pages are nobody's.
        let max_pages = longest.div_ceil(page_size) + slack % 2;
        let owned: usize = kv_lens.iter().map(|len| len.div_ceil(page_size)).sum();
        let pages = owned + 1 + slack % 3;
        let mut numbers: Vec<i32> = (0..pages as i32).collect();
        numbers.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(mix(seed, 999)));
        if let Some(first) = numbers.iter().position(|&page| page == 0)
            && seed % 2 == 1
        {
            numbers.swap(first, pages - 1);
        }
        let mut numbers = numbers.into_iter();
        // What lies beyond a sequence's pages must not be looked at.
        let mut table = vec![i32::MIN; batch * max_pages];
        for (row, len) in table.chunks_mut(max_pages.max(1)).zip(kv_lens) {
            for entry in &mut row[..len.div_ceil(page_size)] {
                *entry = numbers.next().expect("there are as many");
            }
        }
        Self {
            page_size,
            pages,
            max_pages,
            table: Some(table),
        }
    }

    /// Page and row of a key.
    pub fn of(&self, sequence: usize, key: usize) -> (usize, usize) {
        match &self.table {
            None => (sequence, key),
            Some(table) => {
                let page = table[sequence * self.max_pages + key / self.page_size];
                (page as usize, key % self.page_size)
            }
        }
    }
}
