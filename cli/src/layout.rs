//! `ferroflash layout`: pictures of fragments and of shared memory.

use std::env;
use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use ferroflash_insight::layout::fragments::{self, LdmatrixOperand, MmaOperand};
use ferroflash_insight::layout::shared::{self, Access, Storage};
use kernels_gpu::layout::swizzle_mode::SwizzleMode;

use crate::arguments;
use crate::failure::Failure;
use crate::picture;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
    /// Draw the picture to this file too
    #[arg(long, value_name = "FILE", global = true)]
    svg: Option<PathBuf>,
}

#[derive(Subcommand)]
enum What {
    /// Who holds what of mma.m16n8k16
    Mma {
        /// Operand; p shows how scores become operand A
        #[arg(long, value_enum, default_value_t = MmaPicture::C)]
        operand: MmaPicture,
    },
    /// What one ldmatrix.x4 reads, and where it goes
    Ldmatrix {
        /// Operand of the kernels
        #[arg(long, value_enum, default_value_t = LdmatrixPicture::K)]
        operand: LdmatrixPicture,
    },
    /// Who holds what of the accumulator of wgmma.m64nNk16
    Wgmma {
        /// Columns
        #[arg(long, value_name = "N", default_value_t = 16, value_parser = arguments::small, allow_hyphen_values = true)]
        n: u32,
    },
    /// How TMA stores rows of 16, 32, 64 or 128 bytes
    Swizzle {
        /// Bytes the swizzle spans
        #[arg(long, value_enum, default_value_t = ModeName::B128)]
        mode: ModeName,
    },
    /// A tile in shared memory, and the bank conflicts of an access to it
    Smem {
        /// Elements of a row
        #[arg(long, value_name = "D", default_value_t = 64, value_parser = arguments::count, allow_hyphen_values = true)]
        head_dim: usize,
        /// How rows are stored
        #[arg(long, value_enum, default_value_t = StorageName::Swizzled)]
        storage: StorageName,
        /// What a warp does
        #[arg(long, value_enum, default_value_t = AccessName::LdmatrixK)]
        access: AccessName,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum MmaPicture {
    A,
    B,
    C,
    P,
}

#[derive(Clone, Copy, ValueEnum)]
enum LdmatrixPicture {
    Q,
    K,
    V,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    None,
    #[value(name = "32")]
    B32,
    #[value(name = "64")]
    B64,
    #[value(name = "128")]
    B128,
}

#[derive(Clone, Copy, ValueEnum)]
enum StorageName {
    Plain,
    Swizzled,
}

#[derive(Clone, Copy, ValueEnum)]
enum AccessName {
    LdmatrixQ,
    LdmatrixK,
    LdmatrixV,
    Copy,
    Accumulator,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let grid = match &args.what {
        What::Mma { operand } => match operand {
            MmaPicture::A => fragments::mma(MmaOperand::A),
            MmaPicture::B => fragments::mma(MmaOperand::B),
            MmaPicture::C => fragments::mma(MmaOperand::C),
            MmaPicture::P => fragments::identity(),
        },
        What::Ldmatrix { operand } => fragments::ldmatrix(match operand {
            LdmatrixPicture::Q => LdmatrixOperand::Q,
            LdmatrixPicture::K => LdmatrixOperand::K,
            LdmatrixPicture::V => LdmatrixOperand::V,
        }),
        What::Wgmma { n } => fragments::wgmma(*n)?,
        What::Swizzle { mode } => shared::swizzle_mode(match mode {
            ModeName::None => SwizzleMode::None,
            ModeName::B32 => SwizzleMode::B32,
            ModeName::B64 => SwizzleMode::B64,
            ModeName::B128 => SwizzleMode::B128,
        }),
        What::Smem {
            head_dim,
            storage,
            access,
        } => smem(*head_dim, *storage, *access)?,
    };
    if let Some(path) = &args.svg {
        picture::write(path, &grid.svg())?;
    }
    // https://no-color.org
    let colours =
        stdout().is_terminal() && env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    write!(stdout(), "{}", grid.text(colours))?;
    Ok(())
}

fn smem(
    head_dim: usize,
    storage: StorageName,
    access: AccessName,
) -> Result<ferroflash_insight::layout::grid::Grid, Failure> {
    let storage = match storage {
        StorageName::Plain => Storage::Plain,
        StorageName::Swizzled => Storage::Swizzled,
    };
    let access = match access {
        AccessName::LdmatrixQ => Access::LdmatrixQ,
        AccessName::LdmatrixK => Access::LdmatrixK,
        AccessName::LdmatrixV => Access::LdmatrixV,
        AccessName::Copy => Access::Copy,
        AccessName::Accumulator => Access::Accumulator,
    };
    Ok(shared::tile(head_dim, storage, access)?)
}
