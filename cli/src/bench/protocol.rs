//! How `bench` times a call. `bench/protocol.py` times peers by the same definitions, which `bench/README.md` explains.
//!
//! *Sustained* is the time in training and prefill: calls are queued without a pause until the GPU has settled at its
//! power limit. *Burst* is the time of a lone layer: the GPU idles, then a few calls are queued. In both the queue is
//! ahead of the device, so the times hold no host time, and nothing waits between two timed calls.
//!
//! On a device that does not queue ([`Memory::is_queued`]), calls run one at a time, none is dropped, and few are
//! enough. A call that takes seconds, as in the simulator, is made twice.

use std::thread;
use std::time::{Duration, Instant};

use ferroflash::{Backend, Memory};
use ferroflash_insight::timing::queued_ms;

use super::gauge::{Gauge, Reading};
use super::statistics::{median, second_half};
use crate::failure::Failure;

/// Times of the calls of a kernel.
pub struct Times {
    /// Milliseconds of a call, sustained.
    pub ms_sustained: f64,
    /// Milliseconds of a call in a burst.
    pub ms_burst: f64,
    /// Clock and power during the sustained calls, if they can be read.
    pub reading: Option<Reading>,
    /// Microseconds until a call returns.
    pub host_us: f64,
    /// Calls of a chunk, all queued before any is waited for.
    chunk: usize,
    /// Calls that `ms_sustained` is the median of.
    pub sustained_calls: usize,
    /// Bursts that `ms_burst` is the median of.
    pub bursts: usize,
}

/// Numbers of calls and durations of a measurement.
struct Effort {
    /// Calls before the first chunk, made twice: the second time, the last one's duration sets the size of a chunk.
    warm_up_calls: usize,
    /// Bounds of a chunk, which is as many calls as take [`CHUNK_MS`], all queued before any is waited for.
    chunk_calls: (usize, usize),
    /// The sustained part ends with the first chunk that ends later than this.
    sustain: Duration,
    /// Calls of a burst, and how many of its first calls do not count.
    burst_calls: usize,
    burst_dropped: usize,
    /// No burst begins later than this after the first.
    bursts_within: Duration,
}

const QUEUED: Effort = Effort {
    warm_up_calls: 3,
    chunk_calls: (4, 64),
    sustain: Duration::from_millis(1500),
    burst_calls: 6,
    burst_dropped: 1,
    bursts_within: Duration::MAX,
};
const ONE_AT_A_TIME: Effort = Effort {
    warm_up_calls: 0,
    chunk_calls: (1, 1),
    sustain: Duration::from_millis(500),
    burst_calls: 1,
    burst_dropped: 0,
    bursts_within: Duration::from_millis(500),
};

const CHUNK_MS: f64 = 100.0;
/// The first `1 / CHUNK_DROPPED` of a chunk's calls do not count: the queue is not yet far ahead.
const CHUNK_DROPPED: usize = 4;
/// Largest number of bursts, and the pause before each.
const BURSTS: usize = 9;
const IDLE: Duration = Duration::from_millis(30);

/// Times `call`, which has run before on these operands.
pub fn times<B: Backend>(
    backend: &mut B,
    call: &mut impl FnMut(&mut B) -> Result<(), Failure>,
) -> Result<Times, Failure> {
    let is_queued = backend.memory().is_queued();
    let effort = if is_queued { &QUEUED } else { &ONE_AT_A_TIME };
    let gauge = Gauge::of(backend.pci_bus_id());
    let mut queue = |calls| queued_ms(backend, calls, &mut *call);
    let chunk = effort.chunk(&mut queue)?;
    let (all, reading) = Gauge::during(gauge, || effort.sustained(chunk, &mut queue));
    let all = all?;
    let bursts = effort.bursts(&mut queue)?;
    let settled = second_half(&all);
    let ms_sustained = median(settled);
    Ok(Times {
        ms_sustained,
        ms_burst: median(&bursts),
        reading,
        // Without a queue, a call returns when its work is done.
        host_us: host_us_of(backend, chunk, call)?.unwrap_or(ms_sustained * 1e3),
        chunk,
        sustained_calls: settled.len(),
        bursts: bursts.len(),
    })
}

// `queue(n)` makes `n` calls, all queued before any is waited for, and returns the milliseconds of each.
impl Effort {
    /// Number of calls of a chunk, found by making some.
    fn chunk(
        &self,
        queue: &mut impl FnMut(usize) -> Result<Vec<f64>, Failure>,
    ) -> Result<usize, Failure> {
        queue(self.warm_up_calls)?;
        let warm = queue(self.warm_up_calls)?;
        let (least, most) = self.chunk_calls;
        Ok(match warm.last() {
            Some(one_ms) => ((CHUNK_MS / one_ms) as usize).clamp(least, most),
            None => least,
        })
    }

    /// Milliseconds of every call that counts, over consecutive chunks.
    fn sustained(
        &self,
        chunk: usize,
        queue: &mut impl FnMut(usize) -> Result<Vec<f64>, Failure>,
    ) -> Result<Vec<f64>, Failure> {
        let begin = Instant::now();
        let mut all = Vec::new();
        while all.is_empty() || begin.elapsed() < self.sustain {
            all.extend_from_slice(counted_of_chunk(&queue(chunk)?));
        }
        Ok(all)
    }

    /// Median milliseconds of a call in each burst.
    fn bursts(
        &self,
        queue: &mut impl FnMut(usize) -> Result<Vec<f64>, Failure>,
    ) -> Result<Vec<f64>, Failure> {
        let begin = Instant::now();
        let mut bursts = Vec::new();
        while bursts.is_empty() || (bursts.len() < BURSTS && begin.elapsed() < self.bursts_within) {
            thread::sleep(IDLE);
            bursts.push(median(&queue(self.burst_calls)?[self.burst_dropped..]));
        }
        Ok(bursts)
    }
}

/// Median microseconds until `call` returns; `None` if the device queues nothing. `times` are those of another call
/// that does the same work.
pub fn host_us<B: Backend>(
    backend: &mut B,
    times: &Times,
    call: &mut impl FnMut(&mut B) -> Result<(), Failure>,
) -> Result<Option<f64>, Failure> {
    host_us_of(backend, times.chunk, call)
}

/// As [`host_us`], over a chunk of this size, without the timing marks, which take host time too.
fn host_us_of<B: Backend>(
    backend: &mut B,
    chunk: usize,
    call: &mut impl FnMut(&mut B) -> Result<(), Failure>,
) -> Result<Option<f64>, Failure> {
    if !backend.memory().is_queued() {
        return Ok(None);
    }
    let mut us = Vec::with_capacity(chunk);
    for _ in 0..chunk {
        let called = Instant::now();
        call(backend)?;
        us.push(called.elapsed().as_secs_f64() * 1e6);
    }
    backend.memory().synchronize()?;
    Ok(Some(median(&us)))
}

/// The calls of a chunk that count.
fn counted_of_chunk(ms: &[f64]) -> &[f64] {
    &ms[ms.len() / CHUNK_DROPPED..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::Cpu;

    #[test]
    fn a_chunk_takes_a_tenth_of_a_second_within_bounds() {
        let calls = [0.0, 0.001, 1.5, 1.6, 9.9, 30.0, 10_000.0].map(|one_ms| {
            let mut asked = Vec::new();
            let chunk = QUEUED.chunk(&mut |calls| {
                asked.push(calls);
                Ok(vec![70.0, 50.0, one_ms])
            });
            assert_eq!(asked, [3, 3], "warmed up, then timed");
            chunk.expect("nothing fails")
        });
        assert_eq!(calls, [64, 64, 64, 62, 10, 4, 4]);
    }

    /// Chunks are made until the time is over; calls from before the queue was ahead are left out.
    #[test]
    fn chunks_follow_each_other() {
        let effort = Effort {
            sustain: Duration::from_millis(25),
            ..QUEUED
        };
        let mut asked = Vec::new();
        let ms = effort.sustained(8, &mut |calls| {
            asked.push(calls);
            thread::sleep(Duration::from_millis(10));
            let slow_at_first = |index| if index < 2 { 9.0 } else { asked.len() as f64 };
            Ok((0..calls).map(slow_at_first).collect())
        });
        assert!((2..=3).contains(&asked.len()), "{asked:?}");
        assert!(asked.iter().all(|calls| *calls == 8), "{asked:?}");
        let ms = ms.expect("nothing fails");
        let expected = (1..=asked.len()).flat_map(|chunk| [chunk as f64; 6]);
        assert_eq!(ms, expected.collect::<Vec<_>>());
    }

    #[test]
    fn bursts_are_nine_of_six_calls_without_the_first() {
        let mut asked = Vec::new();
        let ms = QUEUED.bursts(&mut |calls| {
            asked.push(calls);
            let burst = asked.len() as f64;
            Ok(vec![90.0, 80.0, burst, burst, 0.0, 70.0])
        });
        assert_eq!(asked, [6; 9]);
        let expected = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        assert_eq!(ms.expect("nothing fails"), expected);
    }

    #[test]
    fn the_first_quarter_of_a_chunk_does_not_count() {
        let ms = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        assert_eq!(counted_of_chunk(&ms), &ms[2..]);
        assert_eq!(counted_of_chunk(&ms[..4]), &ms[1..4]);
        assert_eq!(counted_of_chunk(&ms[..1]), &ms[..1], "one at a time");
    }

    /// A call that takes longer than the whole measurement may is made once for each figure.
    #[test]
    fn slow_calls_of_a_device_that_does_not_queue_are_few() {
        let slow = ONE_AT_A_TIME.sustain + Duration::from_millis(10);
        let mut calls = 0;
        let times = times(&mut Cpu::new(), &mut |_| {
            calls += 1;
            thread::sleep(slow);
            Ok(())
        });
        let times = times.expect("nothing fails");
        assert_eq!((calls, times.sustained_calls, times.bursts), (2, 1, 1));
        assert!(times.ms_sustained >= slow.as_secs_f64() * 1e3);
        assert_eq!(times.host_us, times.ms_sustained * 1e3);
        assert!(times.reading.is_none(), "no GPU was at work");
    }
}
