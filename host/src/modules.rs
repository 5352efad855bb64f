//! The PTX of every kernel, embedded when this crate was built: one module per kernel.

/// Entry name and module text of every kernel.
static MODULES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The PTX module that holds the kernel `entry`; every name among
/// [`instances::all`](kernels_gpu::instances::all) has one.
pub fn ptx(entry: &str) -> Option<&'static str> {
    MODULES
        .iter()
        .find(|(name, _)| *name == entry)
        .map(|(_, ptx)| *ptx)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::instances;

    #[test]
    fn instances_and_modules_match() {
        assert_eq!(MODULES.len(), instances::all().count());
        for instance in instances::all() {
            let ptx = ptx(instance.name).expect("a module for every instance");
            assert!(ptx.contains(&format!(".entry {}(", instance.name)));
            assert!(ptx.contains(&format!(".target {}", instance.arch.name())));
            assert!(ptx.contains(&format!(".maxntid {}, 1, 1", instance.threads)));
        }
    }
}
