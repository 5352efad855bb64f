//! Attention beside candle's own softmax and products, forward and backward: on the CPU and, with the feature `cuda`, on a GPU.

use candle::{DType, Device, Result, Tensor, Var};
use ferroflash_candle as candle_flash_attn;
use ferroflash_candle::{Attention, Precision};

const SCALE: f32 = 0.3;

/// softmax over the keys that are seen, from the formula, on the CPU: operands `[batch, seq, heads, dim]`, bias
/// `[heads, seq_q, seq_k]` or what broadcasts to it.
fn reference(q: &Tensor, k: &Tensor, v: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let [q, k, v] = [q, k, v].map(|x| x.to_device(&Device::Cpu)?.transpose(1, 2)?.contiguous());
    let (q, k, v) = (q?, k?, v?);
    let group = q.dim(1)? / k.dim(1)?;
    let shared = |x: &Tensor| {
        let (batch, heads, seq, dim) = x.dims4()?;
        let each = x.unsqueeze(2)?.expand((batch, heads, group, seq, dim))?;
        each.reshape((batch, heads * group, seq, dim))
    };
    let scores = (q.matmul(&shared(&k)?.t()?)? * f64::from(SCALE))?;
    let scores = scores.broadcast_add(bias)?;
    let highest = scores.max_keepdim(3)?.detach();
    let p = scores.broadcast_sub(&highest)?.exp()?;
    let p = p.broadcast_div(&p.sum_keepdim(3)?)?;
    p.matmul(&shared(&v)?)?.transpose(1, 2)
}

/// 0 where `left <= key - position <= right`, and −∞ elsewhere, plus ALiBi by `slopes`; the last query stands at the last key.
fn bias([seq_q, seq_k]: [usize; 2], sides: [Option<i64>; 2], slopes: &[f32]) -> Result<Tensor> {
    let value = |slope: f32, query: usize, key: usize| {
        let distance = (key + seq_q) as i64 - (query + seq_k) as i64;
        let seen = sides[0].is_none_or(|left| distance >= -left)
            && sides[1].is_none_or(|right| distance <= right);
        if seen {
            -slope * distance.abs() as f32
        } else {
            f32::NEG_INFINITY
        }
    };
    let mut values = Vec::new();
    for &slope in slopes {
        for query in 0..seq_q {
            values.extend((0..seq_k).map(|key| value(slope, query, key)));
        }
    }
    Tensor::from_vec(values, (slopes.len(), seq_q, seq_k), &Device::Cpu)
}

fn close(actual: &Tensor, expected: &Tensor, tolerance: f32) -> Result<()> {
    assert_eq!(actual.dims(), expected.dims());
    let [actual, expected] =
        [actual, expected].map(|x| x.to_device(&Device::Cpu)?.to_dtype(DType::F32));
    let difference = (actual? - expected?)?;
    let error = difference.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(
        error <= tolerance,
        "off by {error:e}, allowed {tolerance:e}"
    );
    Ok(())
}

fn drawn(shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::randn(0f32, 1., shape, &Device::Cpu)?.to_device(device)
}

/// Runs `test` on the CPU and, with the feature `cuda`, on the first GPU. If there is none, that is said, or is a failure where
/// the environment has `FERROFLASH_REQUIRE_GPU`.
fn on_each_device(test: impl Fn(&Device) -> Result<()>) -> Result<()> {
    test(&Device::Cpu)?;
    if cfg!(feature = "cuda") {
        match Device::new_cuda(0) {
            Ok(gpu) => test(&gpu)?,
            Err(error) if std::env::var_os("FERROFLASH_REQUIRE_GPU").is_some() => {
                return Err(error);
            }
            Err(error) => println!("not run on a GPU: {error}"),
        }
    }
    Ok(())
}

#[test]
fn every_dense_function_computes_what_its_name_says() -> Result<()> {
    on_each_device(|device| {
        let q = drawn(&[2, 20, 4, 16], device)?;
        // Views that are not contiguous: a transposed one and a part of another.
        let k = drawn(&[2, 2, 30, 16], device)?.transpose(1, 2)?;
        let v = drawn(&[2, 30, 3, 2, 16], device)?
            .narrow(2, 1, 1)?
            .squeeze(2)?;
        let slopes = [0.1f32, 0.2, 0.3, 0.4];
        let of_alibi = Tensor::new(&slopes, device)?;
        let check = |o: Tensor, sides, slopes: &[f32]| {
            close(
                &o,
                &reference(&q, &k, &v, &bias([20, 30], sides, slopes)?)?,
                2e-5,
            )
        };
        let none = [0.0; 4];
        let causal = [None, Some(0)];
        check(
            candle_flash_attn::flash_attn(&q, &k, &v, SCALE, false)?,
            [None, None],
            &none,
        )?;
        check(
            candle_flash_attn::flash_attn(&q, &k, &v, SCALE, true)?,
            causal,
            &none,
        )?;
        let o = candle_flash_attn::flash_attn_windowed(&q, &k, &v, SCALE, Some(5), Some(2))?;
        check(o, [Some(5), Some(2)], &none)?;
        let o = candle_flash_attn::flash_attn_alibi(&q, &k, &v, &of_alibi, SCALE, true)?;
        check(o, causal, &slopes)?;
        let o = candle_flash_attn::flash_attn_alibi_windowed(
            &q,
            &k,
            &v,
            &of_alibi,
            SCALE,
            Some(7),
            None,
        )?;
        check(o, [Some(7), None], &slopes)?;
        // A softcap that large changes nothing that f32 shows.
        let o = candle_flash_attn::flash_attn_alibi_windowed_softcap(
            &q,
            &k,
            &v,
            Some(&of_alibi),
            SCALE,
            None,
            Some(3),
            1e4,
        )?;
        check(o, [None, Some(3)], &slopes)?;
        let capped = candle_flash_attn::flash_attn_alibi_windowed_softcap(
            &q, &k, &v, None, SCALE, None, None, 0.5,
        )?;
        let whole = candle_flash_attn::flash_attn(&q, &k, &v, SCALE, false)?;
        assert!((capped - whole)?.abs()?.max_all()?.to_scalar::<f32>()? > 1e-2);
        Ok(())
    })
}

#[test]
fn sixteen_bits() -> Result<()> {
    // The second is of a head_dim and length for which a GPU has kernels of their own.
    let shapes = [([1, 33, 2, 40], 2), ([2, 300, 4, 128], 2)];
    on_each_device(|device| {
        let dtypes = [DType::F16, DType::BF16];
        let cases = dtypes
            .into_iter()
            .flat_map(|dtype| shapes.map(|of| (dtype, of)));
        for (dtype, ([batch, seq, heads, dim], heads_kv)) in cases {
            let drawn = |heads| drawn(&[batch, seq, heads, dim], device)?.to_dtype(dtype);
            let (q, k, v) = (drawn(heads)?, drawn(heads_kv)?, drawn(heads_kv)?);
            let o = candle_flash_attn::flash_attn(&q, &k, &v, SCALE, true)?;
            assert_eq!(o.dtype(), dtype);
            let [q, k, v] = [q, k, v].map(|x| x.to_dtype(DType::F32));
            let seen = bias([seq, seq], [None, Some(0)], &vec![0.0; heads])?;
            close(&o, &reference(&q?, &k?, &v?, &seen)?, 2e-2)?;
        }
        Ok(())
    })
}

#[test]
fn threads_share_a_device() -> Result<()> {
    on_each_device(|device| {
        let q = drawn(&[1, 64, 2, 32], device)?;
        let expected = reference(&q, &q, &q, &bias([64, 64], [None, None], &[0.0; 2])?)?;
        let attend = || {
            for _ in 0..20 {
                let o = candle_flash_attn::flash_attn(&q, &q, &q, SCALE, false)?;
                close(&o, &expected, 2e-5)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(attend));
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("no panic"))
        })
    })
}

#[test]
fn packed_sequences_do_not_see_each_other() -> Result<()> {
    on_each_device(|device| {
        let lengths = [3usize, 0, 12, 5];
        let [q, k, v] = [(); 3].map(|()| drawn(&[20, 4, 16], device));
        let (q, k, v) = (q?, k?, v?);
        let sums = Tensor::new(&[0u32, 3, 3, 15, 20], device)?;
        let slopes = [0.1f32, 0.2, 0.3, 0.4];
        let of_alibi = Tensor::new(&slopes, device)?;
        let check = |o: Tensor, sides, slopes: &[f32]| -> Result<()> {
            let mut begin = 0;
            for length in lengths.into_iter().filter(|&length| length > 0) {
                let part = |x: &Tensor| x.narrow(0, begin, length)?.unsqueeze(0);
                let expected = reference(
                    &part(&q)?,
                    &part(&k)?,
                    &part(&v)?,
                    &bias([length; 2], sides, slopes)?,
                )?;
                close(&part(&o)?, &expected, 2e-5)?;
                begin += length;
            }
            Ok(())
        };
        let none = [0.0; 4];
        let o =
            candle_flash_attn::flash_attn_varlen(&q, &k, &v, &sums, &sums, 12, 12, SCALE, true)?;
        check(o, [None, Some(0)], &none)?;
        let o = candle_flash_attn::flash_attn_varlen_windowed(
            &q,
            &k,
            &v,
            &sums,
            &sums,
            12,
            12,
            SCALE,
            Some(2),
            Some(1),
        )?;
        check(o, [Some(2), Some(1)], &none)?;
        let o = candle_flash_attn::flash_attn_varlen_alibi(
            &q, &k, &v, &of_alibi, &sums, &sums, 12, 12, SCALE, false,
        )?;
        check(o, [None, None], &slopes)?;
        let o = candle_flash_attn::flash_attn_varlen_alibi_windowed(
            &q,
            &k,
            &v,
            &of_alibi,
            &sums,
            &sums,
            12,
            12,
            SCALE,
            Some(4),
            Some(0),
        )?;
        check(o, [Some(4), Some(0)], &slopes)?;
        let o = candle_flash_attn::flash_attn_varlen_alibi_windowed_softcap(
            &q,
            &k,
            &v,
            Some(&of_alibi),
            &sums,
            &sums,
            12,
            12,
            SCALE,
            Some(4),
            None,
            1e4,
        )?;
        check(o, [Some(4), None], &slopes)
    })
}

#[test]
fn options_by_name_are_those_of_the_functions() -> Result<()> {
    on_each_device(|device| {
        let [q, k, v] = [(); 3].map(|()| drawn(&[20, 4, 16], device));
        let (q, k, v) = (q?, k?, v?);
        let sums = Tensor::new(&[0u32, 3, 15, 20], device)?;
        let slopes = Tensor::new(&[0.1f32, 0.2, 0.3, 0.4], device)?;
        let attention = |sides: [Option<usize>; 2], softcap| {
            Attention::new(SCALE)
                .window(sides[0], sides[1])
                .softcap(softcap)
                .slopes(Some(&slopes))?
                .packed([&sums; 2], [12; 2])?
                .run(&q, &k, &v)
        };
        let named = |sides: [Option<usize>; 2], softcap| {
            candle_flash_attn::flash_attn_varlen_alibi_windowed_softcap(
                &q,
                &k,
                &v,
                Some(&slopes),
                &sums,
                &sums,
                12,
                12,
                SCALE,
                sides[0],
                sides[1],
                softcap,
            )
        };
        for (sides, softcap) in [([None, Some(0)], 0.0), ([Some(3), Some(1)], 2.0)] {
            close(&attention(sides, softcap)?, &named(sides, softcap)?, 0.0)?;
        }
        let without = Attention::new(SCALE).slopes(Some(&slopes))?;
        let o = without.packed([&sums; 2], [12; 2])?.run(&q, &k, &v)?;
        let farthest = (o - attention([Some(3), Some(1)], 2.0)?)?
            .abs()?
            .max_all()?;
        assert!(farthest.to_scalar::<f32>()? > 1e-3, "options do nothing");
        Ok(())
    })
}

#[test]
fn precision_changes_no_more_than_rounding() -> Result<()> {
    on_each_device(|device| {
        let [q, k, v] = [(); 3].map(|()| drawn(&[2, 70, 4, 16], device));
        let (q, k, v) = (q?, k?, v?);
        let expected = candle_flash_attn::flash_attn(&q, &k, &v, SCALE, true)?;
        let attention = Attention::new(SCALE)
            .causal(true)
            .precision(Precision::Ieee);
        close(&attention.run(&q, &k, &v)?, &expected, 2e-5)
    })
}

#[test]
fn packed_queries_see_keys_in_pages() -> Result<()> {
    const PAGE: usize = 4;
    on_each_device(|device| {
        // GPUs have no cache in f32.
        let (dtype, tolerance) = match device.is_cpu() {
            true => (DType::F32, 2e-5),
            false => (DType::BF16, 3e-2),
        };
        let drawn = |shape: &[usize]| drawn(shape, device)?.to_dtype(dtype);
        let (queries, keys) = ([3usize, 0, 1, 6], [9usize, 5, 8, 6]);
        let q = drawn(&[10, 4, 16])?;
        // Pages of heads that are no neighbours in memory.
        let k = drawn(&[11, 2, PAGE, 16])?.transpose(1, 2)?;
        let v = drawn(&[11, PAGE, 2, 16])?;
        // Page 10 is nobody's, and what is there reaches nobody.
        let pages = [[7u32, 0, 3], [5, 9, 99], [8, 1, 99], [2, 6, 99]];
        let table = Tensor::new(&pages, device)?;
        let sums_q = Tensor::new(&[0u32, 3, 3, 4, 10], device)?;
        let sums_k = Tensor::new(&[0u32, 9, 14, 22, 28], device)?;
        let attend = |table: &Tensor, left, right| {
            candle_flash_attn::flash_attn_varlen_paged_windowed(
                &q,
                &k,
                &v,
                &sums_q,
                &sums_k,
                table,
                None,
                6,
                9,
                SCALE,
                left,
                right,
                PAGE,
                Some(1e4),
            )
        };
        for (left, right) in [(None, None), (None, Some(0)), (Some(2), Some(0))] {
            let o = attend(&table, left, right)?;
            assert_eq!((o.dims(), o.dtype()), (q.dims(), dtype));
            let as_signed = attend(&table.to_dtype(DType::I32)?, left, right)?;
            close(&as_signed, &o, 0.0)?;
            let (mut begin, f32s) = (0, |x: &Tensor| x.to_dtype(DType::F32)?.unsqueeze(0));
            for ((rows, keys), pages) in queries.into_iter().zip(keys).zip(&pages) {
                let whole = keys.div_ceil(PAGE);
                let order = Tensor::new(&pages[..whole], device)?;
                let of_pages = |x: &Tensor| {
                    let rows = x.contiguous()?.index_select(&order, 0)?.flatten(0, 1)?;
                    f32s(&rows.narrow(0, 0, keys)?)
                };
                if rows > 0 {
                    let part = |x: &Tensor| f32s(&x.narrow(0, begin, rows)?);
                    let sides = [left, right].map(|side| side.map(|keys| keys as i64));
                    let seen = bias([rows, keys], sides, &[0.0; 4])?;
                    let expected = reference(&part(&q)?, &of_pages(&k)?, &of_pages(&v)?, &seen)?;
                    close(&part(&o)?, &expected, tolerance)?;
                }
                begin += rows;
            }
        }
        Ok(())
    })
}

#[test]
fn gradients_are_those_of_the_formula() -> Result<()> {
    on_each_device(|device| {
        let var = |shape: &[usize]| Var::from_tensor(&drawn(shape, device)?);
        let (q, k, v) = (
            var(&[2, 20, 4, 16])?,
            var(&[2, 30, 2, 16])?,
            var(&[2, 30, 2, 16])?,
        );
        let weights = drawn(&[2, 20, 4, 16], &Device::Cpu)?;
        let o = candle_flash_attn::flash_attn(&q, &k, &v, SCALE, true)?.to_device(&Device::Cpu)?;
        let mine = (o * &weights)?.sum_all()?.backward()?;
        let o = reference(&q, &k, &v, &bias([20, 30], [None, Some(0)], &[0.0; 4])?)?;
        let expected = (o * &weights)?.sum_all()?.backward()?;
        for of in [&q, &k, &v] {
            let (mine, expected) = (mine.get(of), expected.get(of));
            close(
                mine.expect("a gradient"),
                expected.expect("a gradient"),
                1e-4,
            )?;
        }
        Ok(())
    })
}

#[test]
fn gradients_of_packed_sequences() -> Result<()> {
    on_each_device(|device| {
        let q = Var::from_tensor(&drawn(&[20, 2, 16], device)?)?;
        let sums = Tensor::new(&[0u32, 8, 20], device)?;
        let o =
            candle_flash_attn::flash_attn_varlen(&q, &q, &q, &sums, &sums, 12, 12, SCALE, true)?;
        let mine = o.sqr()?.sum_all()?.backward()?;
        let mut parts = Vec::new();
        for (begin, length) in [(0, 8), (8, 12)] {
            let part = q.narrow(0, begin, length)?.unsqueeze(0)?;
            let o = candle_flash_attn::flash_attn(&part, &part, &part, SCALE, true)?;
            parts.push(o.squeeze(0)?);
        }
        let expected = Tensor::cat(&parts, 0)?.sqr()?.sum_all()?.backward()?;
        close(
            mine.get(&q).expect("a gradient"),
            expected.get(&q).expect("a gradient"),
            1e-5,
        )
    })
}

#[test]
fn what_does_not_fit_is_named() -> Result<()> {
    on_each_device(|device| {
        let q = drawn(&[2, 5, 4, 16], device)?;
        let refused = |o: Result<Tensor>| o.expect_err("it does not fit").to_string();
        let flash = |k: &Tensor| refused(candle_flash_attn::flash_attn(&q, k, k, SCALE, false));
        assert!(flash(&q.narrow(3, 0, 8)?).contains("k: head_dim is 8"));
        assert!(flash(&q.narrow(2, 0, 3)?).contains("heads_q is 4"));
        assert!(flash(&q.to_dtype(DType::F16)?).contains("k: its dtype is F16"));
        assert!(flash(&q.get(0)?).contains("k: it has 3 axes"));
        let double = q.to_dtype(DType::F64)?;
        let o = candle_flash_attn::flash_attn(&double, &double, &double, SCALE, false);
        assert!(refused(o).contains("q: its dtype is F64"));
        let slopes = Tensor::zeros(3, DType::F32, device)?;
        let o = candle_flash_attn::flash_attn_alibi(&q, &q, &q, &slopes, SCALE, false);
        assert!(refused(o).contains("alibi_slopes: its shape is [3]"));
        let (rows, sums) = (q.get(0)?, Tensor::new(&[0u32, 5], device)?);
        let wrong = sums.to_dtype(DType::I64)?;
        let o = candle_flash_attn::flash_attn_varlen(
            &rows, &rows, &rows, &sums, &wrong, 5, 5, SCALE, false,
        );
        assert!(refused(o).contains("seqlens_k: it is I64"));
        Ok(())
    })
}

#[test]
fn what_does_not_fit_pages_is_named() -> Result<()> {
    on_each_device(|device| {
        let (q, k) = (drawn(&[10, 4, 16], device)?, drawn(&[3, 4, 2, 16], device)?);
        let sums = Tensor::new(&[0u32, 5, 10], device)?;
        let table = Tensor::new(&[[0u32, 1], [2, 0]], device)?;
        let refused = |k: &Tensor, table: &Tensor, ranges, page| {
            let o = candle_flash_attn::flash_attn_varlen_paged_windowed(
                &q, k, k, &sums, &sums, table, ranges, 5, 5, SCALE, None, None, page, None,
            );
            o.expect_err("it does not fit").to_string()
        };
        assert!(refused(&k, &table, Some(&table), 4).contains("mm_prefix_ranges: they are given"));
        assert!(refused(&k, &table, None, 8).contains("page_block_size: it is 8; it must be 4"));
        let wrong = refused(&k, &table.get(0)?, None, 4);
        assert!(
            wrong.contains("block_table: it is U32 [2]; it must be U32 or I32 [2, max_blocks]")
        );
        let wrong = refused(&k, &table.to_dtype(DType::F32)?, None, 4);
        assert!(wrong.contains("block_table: it is F32"));
        let rows = drawn(&[12, 2, 16], device)?;
        assert!(refused(&rows, &table, None, 2).contains("k: it has 3 axes; it must have 4"));
        Ok(())
    })
}
