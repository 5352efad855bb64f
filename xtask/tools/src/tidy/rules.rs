//! The table of rules.

/// A limit on the imports of a module.
pub struct Rule {
    /// The module that the rule limits, with those below it.
    pub of: &'static str,
    pub limit: Limit,
    /// Reason for the rule.
    pub because: &'static str,
}

/// The modules that may or may not be imported; each stands for itself and those below it.
pub enum Limit {
    /// None of these may be imported.
    Never(&'static [&'static str]),
    /// Of the workspace, only these and the modules below the rule's own may be imported.
    Only(&'static [&'static str]),
}

use Limit::{Never, Only};

/// Rules for who may import whom. A rule that names a module which does not exist is an error.
pub const RULES: &[Rule] = &[
    Rule {
        of: "ferroflash::problem",
        limit: Never(&[
            "ferroflash::plan",
            "ferroflash::backend",
            "ferroflash::forward",
        ]),
        because: "a problem is what is asked, checked without knowing what runs it",
    },
    Rule {
        of: "ferroflash::plan",
        limit: Never(&["ferroflash::backend", "ferroflash::forward"]),
        because: "a plan is made of a problem and capabilities alone, so that it can be kept and tested without a device",
    },
    Rule {
        of: "ferroflash::backend::cpu",
        limit: Never(&[
            "ferroflash::backend::gpu",
            "ferroflash::backend::cuda",
            "ferroflash::backend::sim",
            "kernels_gpu::simt",
            "kernels_gpu::mma",
            "kernels_gpu::wgmma",
        ]),
        because: "the CPU backend is an implementation of its own, beside which the kernels are tested",
    },
    Rule {
        of: "ferroflash_testing::oracle",
        limit: Never(&[
            "kernels_gpu::tile",
            "kernels_gpu::score",
            "kernels_gpu::layout",
            "kernels_gpu::config",
            "kernels_gpu::simt",
            "kernels_gpu::mma",
            "kernels_gpu::wgmma",
            "ferroflash::plan",
            "ferroflash::backend",
        ]),
        because: "a reference that shares the kernels' bands, tiles or recurrence shares their mistakes",
    },
    Rule {
        of: "ferroflash",
        limit: Only(&["kernels_gpu", "cuda_loader", "ferroflash_ptx", "ptx_sim"]),
        because: "the product does not depend on what tests it, on what teaches or on its command",
    },
    Rule {
        of: "ferroflash_ptx",
        limit: Only(&["ptx_pack"]),
        because: "it carries text, and is all that a build without a GPU compiler has of the kernels",
    },
    Rule {
        of: "ferroflash_testing",
        limit: Only(&["ferroflash", "kernels_gpu"]),
        because: "what tests a backend is given one: it depends on no simulator, and not on what teaches",
    },
    Rule {
        of: "ferroflash_testing",
        limit: Never(&[
            "ferroflash::backend::cuda",
            "ferroflash::backend::sim",
            "ferroflash::backend::cpu",
        ]),
        because: "what tests a backend is given one",
    },
    Rule {
        of: "ferroflash_insight",
        limit: Only(&[
            "ferroflash",
            "ferroflash_ptx",
            "ferroflash_testing",
            "kernels_gpu",
            "kernels_insight",
        ]),
        because: "what teaches does not depend on the command that shows it",
    },
    Rule {
        of: "kernels_gpu",
        limit: Only(&["cuda_std", "cuda_std_macros"]),
        because: "kernels know no host",
    },
    Rule {
        of: "kernels_insight",
        limit: Only(&["kernels_gpu", "cuda_std", "cuda_std_macros"]),
        because: "kernels know no host",
    },
    Rule {
        of: "cuda_loader",
        limit: Only(&[]),
        because: "it finds a driver, and knows nothing of attention",
    },
    Rule {
        of: "cuda_builder",
        limit: Only(&["ptx_pack"]),
        because: "it compiles any crate of kernels",
    },
    Rule {
        of: "ptx_pack",
        limit: Only(&[]),
        because: "it knows text, and not who writes or reads it",
    },
    Rule {
        of: "kernels_gpu::units",
        limit: Only(&[]),
        because: "sizes and powers of two depend on nothing",
    },
    Rule {
        of: "kernels_gpu::math",
        limit: Only(&["cuda_std::math"]),
        because: "the arithmetic that host and device share is one instruction each",
    },
    Rule {
        of: "kernels_gpu::abi",
        limit: Only(&[]),
        because: "what host and kernels exchange depends on neither",
    },
    Rule {
        of: "kernels_gpu::layout",
        limit: Only(&["kernels_gpu::units"]),
        because: "where an element lies is arithmetic, proved on the CPU",
    },
    Rule {
        of: "kernels_gpu::score",
        limit: Only(&[
            "kernels_gpu::abi",
            "kernels_gpu::math",
            "kernels_gpu::units",
            "cuda_std::global",
            "cuda_std::math",
        ]),
        because: "what a score is does not depend on who computes it",
    },
    Rule {
        of: "kernels_gpu::config",
        limit: Only(&["kernels_gpu::layout", "kernels_gpu::units"]),
        because: "tile shapes are numbers, which the host reads too",
    },
    Rule {
        of: "kernels_gpu::tile",
        limit: Never(&[
            "kernels_gpu::simt",
            "kernels_gpu::mma",
            "kernels_gpu::wgmma",
            "kernels_gpu::config",
        ]),
        because: "it holds what does not depend on how a kernel multiplies",
    },
    Rule {
        of: "kernels_gpu::backward",
        limit: Never(&[
            "kernels_gpu::simt",
            "kernels_gpu::mma",
            "kernels_gpu::wgmma",
        ]),
        because: "it holds what every family's backward pass shares",
    },
    Rule {
        of: "kernels_gpu::merge",
        limit: Never(&[
            "kernels_gpu::simt",
            "kernels_gpu::mma",
            "kernels_gpu::wgmma",
        ]),
        because: "partial results are merged alike whatever computed them",
    },
    Rule {
        of: "kernels_gpu::simt",
        limit: Never(&["kernels_gpu::mma", "kernels_gpu::wgmma"]),
        because: "families share what is in tile, score and layout, and nothing else",
    },
    Rule {
        of: "kernels_gpu::mma",
        limit: Never(&["kernels_gpu::simt", "kernels_gpu::wgmma"]),
        because: "families share what is in tile, score and layout, and nothing else",
    },
    Rule {
        of: "kernels_gpu::wgmma",
        limit: Never(&["kernels_gpu::simt", "kernels_gpu::mma"]),
        because: "families share what is in tile, score and layout, and nothing else",
    },
    Rule {
        of: "cuda_std",
        limit: Only(&["cuda_std_macros"]),
        because: "it wraps instructions, and knows nothing of attention",
    },
    Rule {
        of: "ptx_sim",
        limit: Only(&[]),
        because: "the simulator runs any PTX, and knows nothing of these kernels",
    },
];
