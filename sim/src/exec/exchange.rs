//! Warp-wide exchange: `shfl`, `vote`, `redux`, `match`, `elect` (PTX ISA §9.7.9.6, §9.7.13).

use super::regs::{LANES, Regs, lanes};
use crate::fault::{Exec, FaultKind};
use crate::ir::{Op, ReduxOp, Reg, ShflMode, VoteMode};

/// The member-mask register of a warp-wide instruction.
pub(super) fn member_mask(op: &Op) -> Option<Reg> {
    match *op {
        Op::Shfl { mask, .. }
        | Op::Vote { mask, .. }
        | Op::Redux { mask, .. }
        | Op::MatchAny { mask, .. }
        | Op::MatchAll { mask, .. }
        | Op::Elect { mask, .. } => Some(mask),
        _ => None,
    }
}

/// Splits the executing lanes `m` by their member mask; each set must name every lane in it.
pub(super) fn member_groups(
    regs: &Regs,
    mask: Reg,
    m: u32,
    mut f: impl FnMut(u32, u32) -> Exec<()>,
) -> Exec<()> {
    let masks = regs.get32(mask);
    let mut rest = m;
    while rest != 0 {
        let first = rest.trailing_zeros() as usize;
        let members = masks[first];
        let mut group = 0;
        for lane in lanes(rest) {
            if masks[lane] == members {
                group |= 1 << lane;
            }
        }
        if group & !members != 0 {
            let lane = (group & !members).trailing_zeros() as usize;
            return Err(FaultKind::MemberMask(format!(
                "lane {lane} executes with member mask {members:#010x}, which does not name it"
            ))
            .at(lane));
        }
        f(members, group)?;
        rest &= !group;
    }
    Ok(())
}

/// Executes `op` for `group`, all of whose live members are here.
pub(super) fn execute(op: &Op, regs: &mut Regs, group: u32) -> Exec<()> {
    match *op {
        Op::Shfl {
            mode,
            d,
            p,
            a,
            b,
            c,
            ..
        } => shfl(regs, group, mode, [d, p, a, b, c])?,
        Op::Vote { mode, d, a, .. } => {
            let votes = regs.test(a) & group;
            match mode {
                VoteMode::Ballot => regs.put32(d, &[votes; LANES], group),
                VoteMode::All => regs.put_pred(d, spread(votes == group), group),
                VoteMode::Any => regs.put_pred(d, spread(votes != 0), group),
                VoteMode::Uni => regs.put_pred(d, spread(votes == 0 || votes == group), group),
            }
        }
        Op::Redux { f, d, a, .. } => {
            let v = redux(f, lanes(group).map(|lane| regs.get32(a)[lane]));
            regs.put32(d, &[v; LANES], group);
        }
        Op::MatchAny { wide, d, a, .. } => {
            let value = |regs: &Regs, lane: usize| value_of(regs, wide, a, lane);
            let mut result = [0; LANES];
            for lane in lanes(group) {
                for other in lanes(group) {
                    if value(regs, lane) == value(regs, other) {
                        result[lane] |= 1 << other;
                    }
                }
            }
            regs.put32(d, &result, group);
        }
        Op::MatchAll { wide, d, p, a, .. } => {
            let first = value_of(regs, wide, a, group.trailing_zeros() as usize);
            let same = lanes(group).all(|lane| value_of(regs, wide, a, lane) == first);
            regs.put32(d, &[if same { group } else { 0 }; LANES], group);
            regs.put_pred(p, spread(same), group);
        }
        Op::Elect { d, p, .. } => {
            let leader = group.trailing_zeros();
            regs.put32(d, &[leader; LANES], group);
            regs.put_pred(p, 1 << leader, group);
        }
        _ => unreachable!("not a warp-wide exchange"),
    }
    Ok(())
}

fn value_of(regs: &Regs, wide: bool, a: Reg, lane: usize) -> u64 {
    if wide {
        regs.get64(a)[lane]
    } else {
        regs.get32(a)[lane].into()
    }
}

fn spread(v: bool) -> u32 {
    if v { u32::MAX } else { 0 }
}

/// `c` packs a clamp (bits 0–4) and a segment mask (bits 8–12); see the PTX pseudocode of `shfl`.
fn shfl(regs: &mut Regs, group: u32, mode: ShflMode, [d, p, a, b, c]: [Reg; 5]) -> Exec<()> {
    let (source, by, control) = (*regs.get32(a), *regs.get32(b), *regs.get32(c));
    let mut result = [0; LANES];
    let mut inside = 0u32;
    for lane in lanes(group) {
        let me = lane as u32;
        let (bval, cval) = (by[lane] & 0x1f, control[lane] & 0x1f);
        let segment = control[lane] >> 8 & 0x1f;
        let max_lane = me & segment | cval & !segment;
        let min_lane = me & segment;
        let (j, valid) = match mode {
            ShflMode::Up => {
                let j = me as i32 - bval as i32;
                (j, j >= max_lane as i32)
            }
            ShflMode::Down => {
                let j = me + bval;
                (j as i32, j <= max_lane)
            }
            ShflMode::Bfly => {
                let j = me ^ bval;
                (j as i32, j <= max_lane)
            }
            ShflMode::Idx => {
                let j = min_lane | bval & !segment;
                (j as i32, j <= max_lane)
            }
        };
        let from = if valid { j as usize } else { lane };
        if group >> from & 1 == 0 {
            return Err(FaultKind::MemberMask(format!(
                "`shfl` reads lane {from}, which does not take part (members {group:#010x})"
            ))
            .at(lane));
        }
        result[lane] = source[from];
        inside |= u32::from(valid) << lane;
    }
    regs.put32(d, &result, group);
    regs.put_pred(p, inside, group);
    Ok(())
}

fn redux(f: ReduxOp, values: impl Iterator<Item = u32>) -> u32 {
    values
        .reduce(|x, y| match f {
            ReduxOp::Add => x.wrapping_add(y),
            ReduxOp::MinU => x.min(y),
            ReduxOp::MaxU => x.max(y),
            ReduxOp::MinS => (x as i32).min(y as i32) as u32,
            ReduxOp::MaxS => (x as i32).max(y as i32) as u32,
            ReduxOp::And => x & y,
            ReduxOp::Or => x | y,
            ReduxOp::Xor => x ^ y,
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shuffled(mode: ShflMode, b: u32, c: u32) -> [u32; LANES] {
        let mut regs = Regs::new(8, 1, 3);
        regs.put32(1, &std::array::from_fn(|i| i as u32), u32::MAX);
        regs.put32(2, &[b; LANES], u32::MAX);
        regs.put32(3, &[c; LANES], u32::MAX);
        shfl(&mut regs, u32::MAX, mode, [4, 2, 1, 2, 3]).unwrap();
        *regs.get32(4)
    }

    #[test]
    fn shuffles_follow_the_pseudocode() {
        assert_eq!(shuffled(ShflMode::Bfly, 1, 31)[..4], [1, 0, 3, 2]);
        assert_eq!(shuffled(ShflMode::Up, 1, 0)[..4], [0, 0, 1, 2]);
        assert_eq!(shuffled(ShflMode::Down, 1, 31)[29..], [30, 31, 31]);
        assert_eq!(shuffled(ShflMode::Idx, 5, 31), [5; LANES]);
        // Segments of 8 lanes: the segment mask is 0b11000.
        assert_eq!(shuffled(ShflMode::Idx, 1, 0x181f)[8..10], [9, 9]);
    }

    #[test]
    fn reductions() {
        let values = [3, u32::MAX, 5];
        assert_eq!(redux(ReduxOp::MaxU, values.into_iter()), u32::MAX);
        assert_eq!(redux(ReduxOp::MaxS, values.into_iter()), 5);
        assert_eq!(redux(ReduxOp::Add, values.into_iter()), 7);
    }
}
