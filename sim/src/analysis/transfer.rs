//! Transfer functions: how the results of an operation vary, given how its operands do.

use std::collections::{HashMap, HashSet};

use super::level::Level;
use super::versions::{Version, Versions};
use crate::ir::kernel::Preset;
use crate::ir::{
    Barrier, CvtTy, IntBin, IntCmp, IntTy, Kernel, MbarrierKind, Op, Operands, Order, Place, Reg,
    ShflMode, Space, Tern32, Width,
};

/// Lanes of a warp.
const LANES: u64 = 32;
/// Bits of a lane number.
const LANE_BITS: u64 = 5;

/// Level of every register version, and known constants.
pub struct Levels {
    of: HashMap<(Place, Version), Level>,
    constants: HashMap<Place, u64>,
}

impl Levels {
    /// The state before any instruction: levels of the registers' initial values.
    pub fn new(kernel: &Kernel, written: &HashSet<Place>) -> Self {
        let directives = &kernel.directives;
        let one_dimensional = directives
            .reqntid
            .or(directives.maxntid)
            .is_some_and(|[_, y, z]| y == 1 && z == 1);
        let mut levels = Self {
            of: HashMap::new(),
            constants: HashMap::new(),
        };
        let narrow = kernel.presets32.iter().map(|&(r, p)| (Place::R32(r), p));
        let wide = kernel.presets64.iter().map(|&(r, p)| (Place::R64(r), p));
        for (place, preset) in narrow.chain(wide) {
            let level = match preset {
                Preset::Tid(0) if one_dimensional => Level::Thread,
                Preset::Tid(_) if one_dimensional => Level::Cta,
                Preset::Tid(_) | Preset::LaneId | Preset::LaneMask(_) => Level::Lane,
                Preset::WarpId => Level::Warp,
                _ => Level::Cta,
            };
            levels.of.insert((place, 0), level);
            if let (Preset::Value(value), false) = (preset, written.contains(&place)) {
                levels.constants.insert(place, value);
            }
        }
        levels
    }

    fn constant(&self, place: Place) -> Option<u64> {
        self.constants.get(&place).copied()
    }

    /// Whether a 32-bit register holds all ones.
    pub fn names_all_lanes(&self, mask: Reg) -> bool {
        self.constant(Place::R32(mask)) == Some(u32::MAX.into())
    }

    /// Raises a version of `place` to include values of `level`; returns whether that changed it.
    pub fn add(&mut self, place: Place, version: Version, level: Level) -> bool {
        match self.of.get_mut(&(place, version)) {
            None => {
                self.of.insert((place, version), level);
                true
            }
            Some(known) => {
                let joined = known.or(level);
                std::mem::replace(known, joined) != joined
            }
        }
    }
}

/// Levels of an instruction's operands.
pub struct Reader<'a> {
    pub levels: &'a Levels,
    pub versions: &'a Versions,
    pub pc: usize,
}

impl Reader<'_> {
    pub fn get(&self, place: Place) -> Level {
        let versions = self.versions.read(self.pc, place).iter();
        // A version without a level has not been reached yet and adds nothing.
        versions
            .filter_map(|&version| self.levels.of.get(&(place, version)).copied())
            .reduce(Level::or)
            .unwrap_or_default()
    }

    fn constant(&self, place: Place) -> Option<u64> {
        self.levels.constant(place)
    }

    /// Level of the value that `op` writes to `place`.
    pub fn result(&self, op: &Op, operands: &Operands, place: Place) -> Level {
        let reads = operands.reads.iter().map(|&read| self.get(read));
        let all = reads.fold(Level::Cta, Level::of_both);
        match op {
            Op::Mov32 { a, .. } => self.get(Place::R32(*a)),
            Op::Mov64 { a, .. } => self.get(Place::R64(*a)),
            Op::Cvt(_) if operands.reads.len() == 1 => self.converted(op, operands.reads[0]),
            Op::Sel32 { a, b, p, .. } => self.chosen([Place::R32(*a), Place::R32(*b)], p.reg),
            Op::Sel64 { a, b, p, .. } => self.chosen([Place::R64(*a), Place::R64(*b)], p.reg),
            Op::IntBin { f, t, a, b, .. } => self.int_bin(*f, *t, *a, *b).unwrap_or(all),
            Op::Shr { t, a, b, .. } => {
                let (a, by) = (sized(*t, *a), self.constant(Place::R32(*b)));
                match self.get(a) {
                    Level::Thread if by.is_some_and(|by| by >= LANE_BITS) => Level::Warp,
                    _ => all,
                }
            }
            Op::Tern32 {
                f: Tern32::BfeU,
                a,
                b,
                ..
            } => {
                let from = self.constant(Place::R32(*b));
                match self.get(Place::R32(*a)) {
                    Level::Thread if from.is_some_and(|bit| bit >= LANE_BITS) => Level::Warp,
                    _ => all,
                }
            }
            Op::SetpInt { cmp, t, a, b, to } if to.combine.is_none() => self
                .compared(*cmp, sized(*t, *a), sized(*t, *b))
                .unwrap_or(all),
            // Without a race, all threads that load from one address find the same value. Memory that others may change
            // meanwhile is uniform only within a warp.
            Op::Ld(op) => match op.space {
                Space::Local => Level::Lane,
                _ if op.order == Order::Weak => all,
                _ => all.max(Level::Warp),
            },
            Op::Atom(_) | Op::Read { .. } | Op::LdMatrix(_) | Op::Mma(_) | Op::Wgmma(_) => {
                Level::Lane
            }
            Op::Mbarrier(op) => match op.kind {
                MbarrierKind::PendingCount { .. } => all,
                _ => Level::Lane,
            },
            Op::Shfl { mode, b, .. } => match (mode, place) {
                (_, Place::Pred(_)) => all.of_both(Level::Lane),
                (ShflMode::Idx, _) if self.get(Place::R32(*b)) <= Level::Warp => {
                    all.min(Level::Warp)
                }
                _ => all,
            },
            Op::Vote { .. } | Op::Redux { .. } | Op::MatchAll { .. } => all.min(Level::Warp),
            Op::Elect { .. } => match place {
                Place::Pred(_) => Level::Lane,
                _ => Level::Warp,
            },
            Op::Barrier(op) => reduced(op, all),
            _ => all,
        }
    }

    /// Level after a conversion: one that preserves integers preserves the level.
    fn converted(&self, op: &Op, from: Place) -> Level {
        let Op::Cvt(cvt) = op else {
            return Level::Lane;
        };
        match self.get(from) {
            Level::Thread if keeps_integers(cvt.from) && keeps_integers(cvt.to) => Level::Thread,
            level => level.of_both(Level::Cta),
        }
    }

    fn chosen(&self, values: [Place; 2], by: Reg) -> Level {
        let [a, b] = values.map(|place| self.get(place));
        a.or(b).under(self.get(Place::Pred(by)))
    }

    /// Level of arithmetic on a thread number and a constant.
    fn int_bin(&self, f: IntBin, t: IntTy, a: Reg, b: Reg) -> Option<Level> {
        let (a, b) = (sized(t, a), sized(t, b));
        let (thread, constant, swapped) = match (self.get(a), self.get(b)) {
            (Level::Thread, _) => (a, self.constant(b)?, false),
            (_, Level::Thread) => (b, self.constant(a)?, true),
            _ => return None,
        };
        debug_assert_eq!(self.get(thread), Level::Thread);
        let aligned = constant.is_multiple_of(LANES);
        match f {
            IntBin::Add if aligned => Some(Level::Thread),
            IntBin::Sub | IntBin::Rem if aligned && !swapped => Some(Level::Thread),
            IntBin::Div if aligned && !swapped => Some(Level::Warp),
            IntBin::And if aligned => Some(Level::Warp),
            IntBin::And if constant % LANES == LANES - 1 => Some(Level::Thread),
            _ => None,
        }
    }

    /// Level of a thread number compared with a constant: if the border lies between warps, each warp is uniform.
    fn compared(&self, cmp: IntCmp, a: Place, b: Place) -> Option<Level> {
        let (constant, swapped) = match (self.get(a), self.get(b)) {
            (Level::Thread, _) => (self.constant(b)?, false),
            (_, Level::Thread) => (self.constant(a)?, true),
            _ => return None,
        };
        // `constant < thread` has its border where `thread ≤ constant` has it.
        let splits_above = match cmp {
            IntCmp::Lt | IntCmp::Ge => swapped,
            IntCmp::Le | IntCmp::Gt => !swapped,
            IntCmp::Eq | IntCmp::Ne => return None,
        };
        let border = if splits_above {
            constant.wrapping_add(1)
        } else {
            constant
        };
        border.is_multiple_of(LANES).then_some(Level::Warp)
    }
}

/// Whether values of this type can represent any thread number.
fn keeps_integers(ty: CvtTy) -> bool {
    matches!(ty, CvtTy::Int { bits: 32 | 64, .. })
}

fn sized(t: IntTy, reg: Reg) -> Place {
    match t.width() {
        Width::W32 => Place::R32(reg),
        Width::W64 => Place::R64(reg),
    }
}

/// A barrier's reduction is the same in every participating thread: all threads, or as many as it counts.
fn reduced(op: &Barrier, all: Level) -> Level {
    match op.count {
        None => Level::Cta,
        Some(_) => all.min(Level::Warp),
    }
}
