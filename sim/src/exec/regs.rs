//! A warp's registers, 32 lanes to a register, and masked vector operations over them.

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// Mask of a whole warp.
pub(crate) const ALL: u32 = u32::MAX;

/// One 32-bit register of a warp.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct L32(pub [u32; LANES]);

/// One 64-bit register of a warp.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct L64(pub [u64; LANES]);

pub(crate) struct Regs {
    pub r32: Box<[L32]>,
    pub r64: Box<[L64]>,
    /// Predicates as lane masks.
    pub pred: Box<[u32]>,
    /// The carry flag of `add.cc` and its kin, one bit a lane.
    pub carry: u32,
}

#[inline(always)]
fn blend32(dst: &mut [u32; LANES], v: &[u32; LANES], m: u32) {
    if m == ALL {
        *dst = *v;
    } else {
        for i in 0..LANES {
            dst[i] = if m >> i & 1 != 0 { v[i] } else { dst[i] };
        }
    }
}

#[inline(always)]
fn blend64(dst: &mut [u64; LANES], v: &[u64; LANES], m: u32) {
    if m == ALL {
        *dst = *v;
    } else {
        for i in 0..LANES {
            dst[i] = if m >> i & 1 != 0 { v[i] } else { dst[i] };
        }
    }
}

/// `f` of each lane. Loops rather than `array::from_fn` or `map`, which are not always inlined and
/// would then lack the vector instructions of their caller.
#[inline(always)]
pub(crate) fn each1<A: Copy, T: Copy + Default>(a: &[A; LANES], f: impl Fn(A) -> T) -> [T; LANES] {
    let mut v = [T::default(); LANES];
    for (v, &a) in v.iter_mut().zip(a) {
        *v = f(a);
    }
    v
}

/// `f` of each lane's number.
#[inline(always)]
pub(crate) fn each_lane<T: Copy + Default>(f: impl Fn(usize) -> T) -> [T; LANES] {
    let mut v = [T::default(); LANES];
    for (lane, v) in v.iter_mut().enumerate() {
        *v = f(lane);
    }
    v
}

/// [`each1`] of two registers.
#[inline(always)]
pub(crate) fn each2<A: Copy, B: Copy, T: Copy + Default>(
    a: &[A; LANES],
    b: &[B; LANES],
    f: impl Fn(A, B) -> T,
) -> [T; LANES] {
    let mut v = [T::default(); LANES];
    for ((v, &a), &b) in v.iter_mut().zip(a).zip(b) {
        *v = f(a, b);
    }
    v
}

/// [`each1`] of three registers.
#[inline(always)]
fn each3<A: Copy, T: Copy + Default>(
    a: &[A; LANES],
    b: &[A; LANES],
    c: &[A; LANES],
    f: impl Fn(A, A, A) -> T,
) -> [T; LANES] {
    let mut v = [T::default(); LANES];
    for (((v, &a), &b), &c) in v.iter_mut().zip(a).zip(b).zip(c) {
        *v = f(a, b, c);
    }
    v
}

/// Lane by lane, `a` where the mask is set and `b` elsewhere.
#[inline(always)]
pub(crate) fn select<A: Copy + Default>(p: u32, a: &[A; LANES], b: &[A; LANES]) -> [A; LANES] {
    let mut v = [A::default(); LANES];
    for (i, ((v, &a), &b)) in v.iter_mut().zip(a).zip(b).enumerate() {
        *v = if p >> i & 1 != 0 { a } else { b };
    }
    v
}

impl Regs {
    pub(crate) fn new(r32: u32, r64: u32, preds: u32) -> Self {
        Self {
            r32: vec![L32([0; LANES]); r32 as usize].into(),
            r64: vec![L64([0; LANES]); r64 as usize].into(),
            pred: {
                let mut pred = vec![0; preds as usize];
                pred[crate::ir::PRED_TRUE as usize] = ALL;
                pred.into()
            },
            carry: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn get32(&self, r: u32) -> &[u32; LANES] {
        &self.r32[r as usize].0
    }

    #[inline(always)]
    pub(crate) fn get64(&self, r: u32) -> &[u64; LANES] {
        &self.r64[r as usize].0
    }

    #[inline(always)]
    pub(crate) fn put32(&mut self, r: u32, v: &[u32; LANES], m: u32) {
        blend32(&mut self.r32[r as usize].0, v, m);
    }

    #[inline(always)]
    pub(crate) fn put64(&mut self, r: u32, v: &[u64; LANES], m: u32) {
        blend64(&mut self.r64[r as usize].0, v, m);
    }

    /// Lanes where the predicate holds.
    #[inline(always)]
    pub(crate) fn test(&self, p: crate::ir::Pred) -> u32 {
        self.pred[p.reg as usize] ^ if p.negated { ALL } else { 0 }
    }

    #[inline(always)]
    pub(crate) fn put_pred(&mut self, r: u32, v: u32, m: u32) {
        let p = &mut self.pred[r as usize];
        *p = (*p & !m) | (v & m);
    }

    #[inline(always)]
    pub(crate) fn un32(&mut self, m: u32, d: u32, a: u32, f: impl Fn(u32) -> u32) {
        let v = each1(self.get32(a), f);
        self.put32(d, &v, m);
    }

    #[inline(always)]
    pub(crate) fn bin32(&mut self, m: u32, [d, a, b]: [u32; 3], f: impl Fn(u32, u32) -> u32) {
        let v = each2(self.get32(a), self.get32(b), f);
        self.put32(d, &v, m);
    }

    #[inline(always)]
    pub(crate) fn tern32(
        &mut self,
        m: u32,
        [d, a, b, c]: [u32; 4],
        f: impl Fn(u32, u32, u32) -> u32,
    ) {
        let v = each3(self.get32(a), self.get32(b), self.get32(c), f);
        self.put32(d, &v, m);
    }

    #[inline(always)]
    pub(crate) fn un64(&mut self, m: u32, d: u32, a: u32, f: impl Fn(u64) -> u64) {
        let v = each1(self.get64(a), f);
        self.put64(d, &v, m);
    }

    #[inline(always)]
    pub(crate) fn bin64(&mut self, m: u32, [d, a, b]: [u32; 3], f: impl Fn(u64, u64) -> u64) {
        let v = each2(self.get64(a), self.get64(b), f);
        self.put64(d, &v, m);
    }

    #[inline(always)]
    pub(crate) fn tern64(
        &mut self,
        m: u32,
        [d, a, b, c]: [u32; 4],
        f: impl Fn(u64, u64, u64) -> u64,
    ) {
        let v = each3(self.get64(a), self.get64(b), self.get64(c), f);
        self.put64(d, &v, m);
    }

    /// Lanes where `f` holds of two 32-bit registers.
    #[inline(always)]
    pub(crate) fn cmp32(&self, a: u32, b: u32, f: impl Fn(u32, u32) -> bool) -> u32 {
        let (a, b) = (self.get32(a), self.get32(b));
        let mut bits = 0;
        for i in 0..LANES {
            bits |= u32::from(f(a[i], b[i])) << i;
        }
        bits
    }

    /// Lanes where `f` holds of two 64-bit registers.
    #[inline(always)]
    pub(crate) fn cmp64(&self, a: u32, b: u32, f: impl Fn(u64, u64) -> bool) -> u32 {
        let (a, b) = (self.get64(a), self.get64(b));
        let mut bits = 0;
        for i in 0..LANES {
            bits |= u32::from(f(a[i], b[i])) << i;
        }
        bits
    }
}

/// The set lanes of a mask, lowest first.
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lane = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(lane)
    })
}
