//! The PTX of `kernels-insight`.

use ferroflash_ptx::{Module, Pack};
use kernels_gpu::instances::Instance;

// `static MODULES: [Module; …]`, one a kernel, and `static PACKS: [Pack; …]`.
include!(env!("FERROFLASH_INSIGHT_MODULES"));

/// The PTX module that holds the kernel of `instance`.
pub fn of(instance: &Instance) -> &'static str {
    ferroflash_ptx::find(&MODULES, instance.name).expect("every instance has a module")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_insight::instances;

    #[test]
    fn instances_and_modules_match() {
        assert_eq!(MODULES.len(), instances::all().count());
        for instance in instances::all() {
            assert!(of(instance).contains(&format!(".entry {}(", instance.name)));
        }
    }
}
