//! Descriptors of matrices in shared memory, for `wgmma`.
//!
//! Matrices lie in atom columns of 64 elements (128 bytes), each a column of swizzle atoms, with the 128-byte swizzle,
//! as TMA writes them: `[atom column][row][128 bytes]`, every atom column 1024-byte aligned (PTX ISA, "Strides",
//! "Matrix Descriptor Format"). M and N are the dimensions of A and B that remain in D, K the one that is contracted.
//!
//! ```text
//! K-major    a row is one m (or n), an atom column 64 consecutive k      q · k of attention: rows of Q and K, as they are stored
//! MN-major   a row is one k, an atom column 64 consecutive m (or n)      p · v of attention: rows of V, as they are stored
//! ```

use core::marker::PhantomData;

/// The dimension along which the rows of an operand in shared memory run.
pub trait Major: Copy {}

/// Rows run along K; an atom column has exactly the operand's rows: 64 of A, n of B.
#[derive(Clone, Copy)]
pub struct KMajor;

/// Rows run along K and are some of an atom column's `ATOM_COLUMN_ROWS` rows, from a multiple of eight on: a
/// warpgroup's part of a matrix that several share.
#[derive(Clone, Copy)]
pub struct KMajorOf<const ATOM_COLUMN_ROWS: usize>;

/// Rows run along M or N.
#[derive(Clone, Copy)]
pub struct MnMajor;

impl Major for KMajor {}
impl<const ATOM_COLUMN_ROWS: usize> Major for KMajorOf<ATOM_COLUMN_ROWS> {}
impl Major for MnMajor {}

/// A matrix in shared memory: its address, strides and swizzle; its type gives its major dimension.
#[derive(Clone, Copy)]
pub struct Descriptor<M: Major>(pub(super) u64, PhantomData<M>);

/// Bytes of an atom column's row, and of the unit in which a descriptor counts.
const ROW_BYTES: u32 = 128;
const UNIT: u32 = 16;
/// Shared-memory addresses a descriptor can name.
const ADDRESS_MASK: u32 = 0x3_ffff;
/// Distance of groups of eight rows, the height of a core matrix.
const STRIDE_OFFSET: u64 = ((8 * ROW_BYTES / UNIT) as u64) << 32;
/// The 128-byte swizzle.
const SWIZZLE_128B: u64 = 1 << 62;

impl Descriptor<KMajor> {
    /// A matrix whose rows run along K and fill their atom columns. The leading offset is unused with this swizzle.
    #[inline(always)]
    pub fn k_major(address: u32) -> Self {
        Self::new(address, UNIT)
    }
}

impl<const ATOM_COLUMN_ROWS: usize> Descriptor<KMajorOf<ATOM_COLUMN_ROWS>> {
    /// A matrix whose rows run along K, the first of them at `address`, among others of atom columns of `ATOM_COLUMN_ROWS`.
    #[inline(always)]
    pub fn k_major_of(address: u32) -> Self {
        Self::new(address, UNIT)
    }
}

impl Descriptor<MnMajor> {
    /// A matrix whose rows run along M or N, with `atom_column_bytes` from an atom column to the next.
    #[inline(always)]
    pub fn mn_major(address: u32, atom_column_bytes: u32) -> Self {
        Self::new(address, atom_column_bytes)
    }
}

impl<M: Major> Descriptor<M> {
    #[inline(always)]
    fn new(address: u32, leading_bytes: u32) -> Self {
        let address = ((address & ADDRESS_MASK) / UNIT) as u64;
        let leading = ((leading_bytes / UNIT) as u64) << 16;
        Self(
            address | leading | STRIDE_OFFSET | SWIZZLE_128B,
            PhantomData,
        )
    }

    /// The shared-memory address the matrix begins at, in the block that `base`, any of its addresses, belongs to: a
    /// descriptor lacks the bits that tell the blocks of a cluster apart.
    #[inline(always)]
    pub fn address(self, base: u32) -> u32 {
        base & !ADDRESS_MASK | self.0 as u32 * UNIT & ADDRESS_MASK
    }

    /// The same matrix `bytes` further on, a multiple of 1024.
    #[inline(always)]
    pub fn offset(self, bytes: u32) -> Self {
        Self(self.0 + (bytes / UNIT) as u64, PhantomData)
    }
}
