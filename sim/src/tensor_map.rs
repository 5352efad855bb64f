//! Tensor maps: the 128-byte objects that bulk tensor copies are addressed by.
//!
//! The driver's `CUtensorMap` is opaque, so the simulator has an encoding of its own; a kernel only
//! hands the bytes on. All fields are little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0–7 | `PTXSIMTM` |
//! | 8 | element type, in the order of [`TensorMapType`] |
//! | 9 | rank, 1–5 |
//! | 10 | swizzle, in the order of [`Swizzle`] |
//! | 11 | out-of-bounds fill: 0 zeros, 1 NaN |
//! | 16–23 | global address |
//! | 24–63 | dimensions, five u64 |
//! | 64–95 | strides of dimensions 1–4, four u64, in bytes |
//! | 96–105 | box dimensions, five u16 |
//!
//! The rules of encoding are those of `cuTensorMapEncodeTiled` (CUDA driver API, "Tensor Map Object Management"),
//! without interleave and with element strides of 1.

use thiserror::Error;

const MAGIC: &[u8; 8] = b"PTXSIMTM";
/// Size of an encoded map.
pub const TENSOR_MAP_BYTES: usize = 128;
const MAX_RANK: usize = 5;
const MAX_BOX: u32 = 256;
const ALIGN: u64 = 16;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorMapType {
    U8,
    U16,
    U32,
    S32,
    U64,
    S64,
    F16,
    F32,
    F64,
    Bf16,
}

const TYPES: [TensorMapType; 10] = [
    TensorMapType::U8,
    TensorMapType::U16,
    TensorMapType::U32,
    TensorMapType::S32,
    TensorMapType::U64,
    TensorMapType::S64,
    TensorMapType::F16,
    TensorMapType::F32,
    TensorMapType::F64,
    TensorMapType::Bf16,
];

impl TensorMapType {
    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    /// The bits a NaN fill writes, for floating types.
    pub(crate) fn nan(self) -> u64 {
        match self {
            Self::F16 => 0x7fff,
            Self::Bf16 => 0x7fff,
            Self::F32 => 0x7fff_ffff,
            Self::F64 => 0x7fff_ffff_ffff_ffff,
            _ => 0,
        }
    }
}

/// How 16-byte pieces of a box are permuted in shared memory: the piece number within a row of the
/// span is XORed with address bits 7 and up (PTX ISA §5.5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    None,
    B32,
    B64,
    B128,
}

const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

impl Swizzle {
    /// Bytes of the span that is permuted; 16 without swizzle.
    pub fn span(self) -> u64 {
        16 << self.bits()
    }

    /// Number of address bits that take part.
    fn bits(self) -> u32 {
        match self {
            Self::None => 0,
            Self::B32 => 1,
            Self::B64 => 2,
            Self::B128 => 3,
        }
    }

    /// Shared-memory address at which the swizzle stores the data that would be at `address` without it.
    ///
    /// ```
    /// use ptx_sim::Swizzle;
    /// assert_eq!(Swizzle::B128.apply(0x400 + 0x80), 0x400 + 0x80 + 0x10);
    /// assert_eq!(Swizzle::None.apply(0x480), 0x480);
    /// ```
    #[inline(always)]
    pub fn apply(self, address: u64) -> u64 {
        let mask = (1 << self.bits()) - 1;
        address ^ (address >> 7 & mask) << 4
    }
}

/// Value read for elements outside the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfBoundsFill {
    Zeros,
    /// Floating types only.
    Nan,
}

/// A tensor in global memory and the box a copy moves.
///
/// Dimension 0 is the innermost and contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    pub ty: TensorMapType,
    /// Global address, a multiple of 16.
    pub address: u64,
    /// Elements along each dimension, 1 to 5 of them.
    pub dims: Vec<u64>,
    /// Bytes between neighbours along dimensions 1 and up; multiples of 16.
    pub strides: Vec<u64>,
    /// Elements of the box along each dimension.
    pub box_dims: Vec<u32>,
    pub swizzle: Swizzle,
    pub fill: OutOfBoundsFill,
}

/// A tensor map that hardware would refuse, or bytes that are no map.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("tensor map: {0}")]
pub struct TensorMapError(String);

fn refuse<T>(message: impl Into<String>) -> Result<T, TensorMapError> {
    Err(TensorMapError(message.into()))
}

impl TensorMap {
    /// Bytes of the box's innermost dimension.
    pub(crate) fn row_bytes(&self) -> u64 {
        u64::from(self.box_dims[0]) * self.ty.bytes()
    }

    /// Rows of the box.
    pub(crate) fn rows(&self) -> u64 {
        self.box_dims[1..].iter().map(|&d| u64::from(d)).product()
    }

    /// Bytes of the whole box, which a load announces to its mbarrier.
    pub fn box_bytes(&self) -> u64 {
        self.row_bytes() * self.rows()
    }

    /// Checks the rules of `cuTensorMapEncodeTiled`.
    fn validate(&self) -> Result<(), TensorMapError> {
        let rank = self.dims.len();
        if rank == 0 || rank > MAX_RANK {
            return refuse(format!("rank {rank} is not 1 to {MAX_RANK}"));
        }
        if self.box_dims.len() != rank || self.strides.len() + 1 != rank {
            return refuse(format!(
                "rank {rank} needs {rank} box dimensions and {} strides",
                rank - 1
            ));
        }
        if !self.address.is_multiple_of(ALIGN) {
            return refuse(format!(
                "address {:#x} is not a multiple of 16",
                self.address
            ));
        }
        if let Some(d) = self.dims.iter().find(|&&d| d == 0 || d > 1 << 32) {
            return refuse(format!("dimension {d} is not 1 to 2^32"));
        }
        if let Some(s) = self
            .strides
            .iter()
            .find(|&&s| !s.is_multiple_of(ALIGN) || s >= 1 << 40)
        {
            return refuse(format!("stride {s} is not a multiple of 16 below 2^40"));
        }
        if let Some(b) = self.box_dims.iter().find(|&&b| b == 0 || b > MAX_BOX) {
            return refuse(format!("box dimension {b} is not 1 to {MAX_BOX}"));
        }
        let row = self.row_bytes();
        if !row.is_multiple_of(ALIGN) {
            return refuse(format!(
                "{row} bytes of the inner box are not a multiple of 16"
            ));
        }
        if self.swizzle != Swizzle::None && row > self.swizzle.span() {
            return refuse(format!(
                "{row} bytes of the inner box exceed the swizzle span of {}",
                self.swizzle.span()
            ));
        }
        if self.fill == OutOfBoundsFill::Nan && self.ty.nan() == 0 {
            return refuse("NaN fill needs a floating type");
        }
        Ok(())
    }

    /// The map's 128 bytes, to be passed to a kernel as a 64-byte aligned parameter or in memory.
    ///
    /// # Errors
    /// [`TensorMapError`] for what `cuTensorMapEncodeTiled` refuses.
    pub fn encode(&self) -> Result<[u8; TENSOR_MAP_BYTES], TensorMapError> {
        self.validate()?;
        let mut bytes = [0; TENSOR_MAP_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8] = self.ty as u8;
        bytes[9] = self.dims.len() as u8;
        bytes[10] = self.swizzle as u8;
        bytes[11] = self.fill as u8;
        bytes[16..24].copy_from_slice(&self.address.to_le_bytes());
        for (i, d) in self.dims.iter().enumerate() {
            bytes[24 + 8 * i..][..8].copy_from_slice(&d.to_le_bytes());
        }
        for (i, s) in self.strides.iter().enumerate() {
            bytes[64 + 8 * i..][..8].copy_from_slice(&s.to_le_bytes());
        }
        for (i, b) in self.box_dims.iter().enumerate() {
            bytes[96 + 2 * i..][..2].copy_from_slice(&(*b as u16).to_le_bytes());
        }
        Ok(bytes)
    }

    /// Reads a map back.
    ///
    /// # Errors
    /// [`TensorMapError`] if the bytes are not what [`Self::encode`] wrote.
    pub fn decode(bytes: &[u8; TENSOR_MAP_BYTES]) -> Result<Self, TensorMapError> {
        let long = |at: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(raw)
        };
        let rank = usize::from(bytes[9]);
        if &bytes[..8] != MAGIC || rank == 0 || rank > MAX_RANK {
            return refuse("these bytes are not an encoded map");
        }
        let (Some(&ty), Some(&swizzle)) = (
            TYPES.get(usize::from(bytes[8])),
            SWIZZLES.get(usize::from(bytes[10])),
        ) else {
            return refuse("unknown element type or swizzle");
        };
        let map = Self {
            ty,
            address: long(16),
            dims: (0..rank).map(|i| long(24 + 8 * i)).collect(),
            strides: (1..rank).map(|i| long(56 + 8 * i)).collect(),
            box_dims: (0..rank)
                .map(|i| u16::from_le_bytes([bytes[96 + 2 * i], bytes[97 + 2 * i]]).into())
                .collect(),
            swizzle,
            fill: if bytes[11] == 0 {
                OutOfBoundsFill::Zeros
            } else {
                OutOfBoundsFill::Nan
            },
        };
        map.validate()?;
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap {
            ty: TensorMapType::Bf16,
            address: 1 << 37,
            dims: vec![64, 100, 2, 3],
            strides: vec![256, 128, 25_600],
            box_dims: vec![64, 16, 2, 1],
            swizzle: Swizzle::B128,
            fill: OutOfBoundsFill::Zeros,
        }
    }

    #[test]
    fn encoding_is_reversible() {
        let m = map();
        assert_eq!(TensorMap::decode(&m.encode().unwrap()), Ok(m.clone()));
        assert_eq!(m.box_bytes(), 64 * 2 * 16 * 2);
    }

    #[test]
    fn what_the_driver_refuses_is_refused() {
        for change in [
            |m: &mut TensorMap| m.address += 8,
            |m: &mut TensorMap| m.strides[0] = 100,
            |m: &mut TensorMap| m.box_dims[1] = 257,
            |m: &mut TensorMap| m.box_dims[0] = 65,
            |m: &mut TensorMap| m.dims[2] = 0,
            |m: &mut TensorMap| m.swizzle = Swizzle::B64,
            |m: &mut TensorMap| m.dims.truncate(3),
        ] {
            let mut m = map();
            change(&mut m);
            assert!(m.encode().is_err(), "{m:?}");
        }
        assert!(TensorMap::decode(&[0; TENSOR_MAP_BYTES]).is_err());
    }

    #[test]
    fn swizzles_permute_sixteen_byte_pieces() {
        for swizzle in SWIZZLES {
            let mut seen = std::collections::BTreeSet::new();
            for piece in 0..64 {
                seen.insert(swizzle.apply(piece * 16));
            }
            assert_eq!(seen.len(), 64);
            assert!(seen.iter().all(|a| a % 16 == 0 && *a < 1024));
        }
        assert_eq!(Swizzle::B32.apply(0x80), 0x90);
        assert_eq!(Swizzle::B64.apply(0x180), 0x180 ^ 0x30);
    }
}
