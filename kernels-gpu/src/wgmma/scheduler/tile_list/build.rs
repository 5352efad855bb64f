//! The algorithm that makes the list: a counting sort by a team of threads.

use super::sequence::ListedSequence;
use super::team::Team;
use super::{ListHeader, Order, TileListParams};
use crate::config::tile_list::{BUCKETS, BUCKETS_AT_ONCE};

/// Lists the tiles of the launch that `params` describe.
///
/// The lengths may have any values. If they give more tiles than the list has room for, which needs overlapping
/// sequences, the list is left empty.
///
/// # Safety
/// All members of the team call it with the same `params`, for which [`Team`] reads lengths that nobody writes meanwhile.
#[inline(always)]
pub unsafe fn build<T: Team>(team: &T, params: &TileListParams) {
    let builder = Builder {
        team,
        params,
        order: Order::of(&params.attention),
    };
    // SAFETY: all members are here, as the caller vouches; the conditions of branches are the same for all of them.
    unsafe {
        let [tiles, rows] = builder.totals();
        let entries = if tiles <= params.capacity { tiles } else { 0 };
        builder.put_header(entries, rows);
        if !team.any(entries > 0) {
            return;
        }
        let parts = builder.order.parts(rows);
        if team.any(parts > 1) {
            builder.assign_parts(parts, rows);
        }
        let (mut part, mut begin) = (0, 0);
        loop {
            let listed = builder.list_part(part, parts, begin);
            part += 1;
            if !team.any(part < parts) {
                return;
            }
            begin += team.sums([listed])[0];
        }
    }
}

/// The list as one member makes it.
struct Builder<'a, T> {
    team: &'a T,
    params: &'a TileListParams,
    order: Order,
}

impl<T: Team> Builder<'_, T> {
    /// Tiles of a pack of heads, and rows of K and V of the sequences that have any.
    ///
    /// # Safety
    /// As [`build`].
    #[inline(always)]
    unsafe fn totals(&self) -> [u32; 2] {
        let mut totals = [0u32; 2];
        self.each_own(|_, sequence| {
            let [tiles, rows] = &mut totals;
            *tiles = tiles.saturating_add(sequence.cluster_m_blocks);
            *rows = rows.saturating_add(sequence.rows.seq_kv);
        });
        // SAFETY: all members are here, as the caller vouches.
        unsafe { self.team.sums(totals) }
    }

    #[inline(always)]
    fn put_header(&self, entries: u32, rows: u32) {
        if self.team.rank() != 0 {
            return;
        }
        let TileListParams {
            attention,
            pack_gqa,
            cluster,
            ..
        } = self.params;
        let heads = [attention.heads_kv, pack_gqa.packs()];
        self.team.put_header(ListHeader {
            tiles: entries * heads[0] * heads[1],
            sections: self.order.sections(rows, heads, entries, *cluster),
        });
    }

    /// Records for each sequence which of `parts` parts it belongs to: sequences are assigned longest first, so that
    /// all parts have about the same share of the `rows` rows of K and V.
    ///
    /// # Safety
    /// As [`build`].
    #[inline(always)]
    unsafe fn assign_parts(&self, parts: u32, rows: u32) {
        let team = self.team;
        // SAFETY: all members are here, as the caller vouches.
        unsafe {
            self.clear();
            self.each_own(|_, sequence| {
                team.add_to_bucket(self.bucket(sequence.longest()), sequence.rows.seq_kv);
            });
            self.count_before(0);
            self.each_own(|batch, sequence| {
                let seq_kv = sequence.rows.seq_kv;
                let before = team.add_to_bucket(self.bucket(sequence.longest()), seq_kv);
                let middle = before as u64 + seq_kv as u64 / 2;
                let part = middle * parts as u64 / (rows as u64).max(1);
                team.set_note(batch, part.min(parts as u64 - 1) as u32);
            });
            team.barrier();
        }
    }

    /// Lists the tiles of one part from entry `begin` on; returns the number of entries counted in this member's
    /// buckets.
    ///
    /// # Safety
    /// As [`build`].
    #[inline(always)]
    unsafe fn list_part(&self, part: u32, parts: u32, begin: u32) -> u32 {
        let team = self.team;
        // SAFETY: all members are here, as the caller vouches; `order` is the same for all of them.
        unsafe {
            self.clear();
            match self.order {
                Order::BySequence => self.each_own(|_, sequence| {
                    team.add_to_bucket(self.bucket(sequence.longest()), sequence.cluster_m_blocks);
                }),
                Order::LongestFirst { .. } => {
                    self.each_tile(part, parts, |_, sequence, cluster_m_block| {
                        team.add_to_bucket(self.bucket(sequence.keys(cluster_m_block)), 1);
                    })
                }
            }
            let listed = self.count_before(begin);
            match self.order {
                Order::BySequence => self.place_sequences(),
                Order::LongestFirst { .. } => {
                    self.each_tile(part, parts, |_, sequence, cluster_m_block| {
                        let index =
                            team.add_to_bucket(self.bucket(sequence.keys(cluster_m_block)), 1);
                        team.put_entry(index, sequence.entry(cluster_m_block));
                    })
                }
            }
            listed
        }
    }

    /// Lists whole sequences, their last tiles first, at the places that the buckets give.
    ///
    /// # Safety
    /// As [`build`].
    #[inline(always)]
    unsafe fn place_sequences(&self) {
        let team = self.team;
        self.each_own(|batch, sequence| {
            let bucket = self.bucket(sequence.longest());
            team.set_note(batch, team.add_to_bucket(bucket, sequence.cluster_m_blocks));
        });
        // SAFETY: all members are here, as the caller vouches.
        unsafe { team.barrier() };
        self.each_tile(0, 1, |batch, sequence, cluster_m_block| {
            let index = team.note(batch) + sequence.cluster_m_blocks - 1 - cluster_m_block;
            team.put_entry(index, sequence.entry(cluster_m_block));
        });
    }

    /// The bucket of tiles that see `keys` keys; those that see most come first.
    #[inline(always)]
    fn bucket(&self, keys: u32) -> u32 {
        let most = self.params.attention.seq_kv;
        let bits = u32::BITS - most.leading_zeros();
        (most - keys.min(most)) >> bits.saturating_sub(BUCKETS.ilog2())
    }

    /// Empties the buckets.
    ///
    /// # Safety
    /// As [`build`].
    #[inline(always)]
    unsafe fn clear(&self) {
        let mut index = self.team.rank() * BUCKETS_AT_ONCE;
        while index < BUCKETS {
            self.team.set_buckets(index, [0; BUCKETS_AT_ONCE as usize]);
            index += self.team.size() * BUCKETS_AT_ONCE;
        }
        // SAFETY: all members are here, as the caller vouches.
        unsafe { self.team.barrier() };
    }

    /// Turns counts into places, by an exclusive sum: each bucket then holds `begin` plus the counts of the buckets
    /// before it. Counts 2, 3, 1 from `begin` 10 become 10, 12, 15. Returns the sum of the counts of this member's
    /// buckets.
    ///
    /// # Safety
    /// As [`build`].
    #[inline(always)]
    unsafe fn count_before(&self, begin: u32) -> u32 {
        let team = self.team;
        let own = BUCKETS / team.size();
        let first = team.rank() * own;
        // SAFETY: all members are here, as the caller vouches, and none but this one accesses its buckets between the
        // barriers.
        unsafe {
            team.barrier();
            let mut count = 0;
            let mut index = first;
            while index < first + own {
                let of_some = running(count, team.buckets(index));
                count = of_some[BUCKETS_AT_ONCE as usize];
                index += BUCKETS_AT_ONCE;
            }
            let mut before = begin.wrapping_add(team.sum_before(count));
            let mut index = first;
            while index < first + own {
                let [a, b, c, d, end] = running(before, team.buckets(index));
                team.set_buckets(index, [a, b, c, d]);
                before = end;
                index += BUCKETS_AT_ONCE;
            }
            team.barrier();
            count
        }
    }

    /// log₂ of the members that share a sequence: all of them have some to do where sequences are few.
    #[inline(always)]
    fn members_log2(&self) -> u32 {
        let size = self.team.size();
        let batch = self.params.attention.batch.min(size).max(1);
        size.ilog2() - batch.next_power_of_two().trailing_zeros()
    }

    /// This member's index among those that share a sequence.
    #[inline(always)]
    fn member(&self) -> u32 {
        self.team.rank() & ((1 << self.members_log2()) - 1)
    }

    /// Calls `visit` for every sequence with queries whose first member is this one.
    #[inline(always)]
    fn each_own(&self, mut visit: impl FnMut(u32, &ListedSequence)) {
        let first = self.member() == 0;
        self.each_sequence(|batch, sequence| {
            if first && sequence.cluster_m_blocks > 0 {
                visit(batch, sequence);
            }
        });
    }

    /// Calls `visit` for every tile of part `part` that falls to this member.
    #[inline(always)]
    fn each_tile(&self, part: u32, parts: u32, mut visit: impl FnMut(u32, &ListedSequence, u32)) {
        self.each_sequence(|batch, sequence| {
            let mut cluster_m_block = self.member();
            // A sequence without queries has no part.
            if cluster_m_block < sequence.cluster_m_blocks
                && (parts == 1 || self.team.note(batch) == part)
            {
                while cluster_m_block < sequence.cluster_m_blocks {
                    visit(batch, sequence, cluster_m_block);
                    cluster_m_block += 1 << self.members_log2();
                }
            }
        });
    }

    /// Calls `visit` for every sequence that this member shares.
    #[inline(always)]
    fn each_sequence(&self, mut visit: impl FnMut(u32, &ListedSequence)) {
        let mut batch = self.team.rank() >> self.members_log2();
        while batch < self.params.attention.batch {
            let length = |address| self.team.length(address);
            visit(batch, &ListedSequence::new(self.params, batch, length));
            batch += self.team.size() >> self.members_log2();
        }
    }
}

/// `before` plus the sum of the first 0, 1, 2, 3 and 4 counts. Only wrong lengths may give sums too large for 32 bits.
#[inline(always)]
fn running(before: u32, [a, b, c, d]: [u32; 4]) -> [u32; 5] {
    let first = before.wrapping_add(a);
    let second = first.wrapping_add(b);
    let third = second.wrapping_add(c);
    [before, first, second, third, third.wrapping_add(d)]
}
