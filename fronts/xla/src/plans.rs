use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use ferroflash::{Capabilities, Error, Plans, TensorSpec};
use ferroflash_fronts::{lock, problem};

use crate::arrays::Arrays;
use crate::options::Attributes;

/// All that a plan depends on but addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Negative: the CPU.
    pub device: i32,
    pub attributes: Attributes,
    pub arrays: Arrays,
    /// q, k, v and o; of a backward pass also d_o, dq, dk and dv.
    pub specs: Vec<TensorSpec>,
}

static KNOWN: LazyLock<Mutex<HashMap<Kind, Arc<Plans>>>> = LazyLock::new(Mutex::default);
const MOST: usize = 4096;

/// The plans of calls of this kind on a device with capabilities `here`, checked when the first comes.
///
/// # Errors
/// [`Error::Argument`] names what is refused.
pub fn plans(kind: Kind, here: Capabilities) -> Result<Arc<Plans>, Error> {
    if let Some(known) = lock(&KNOWN).get(&kind) {
        return Ok(Arc::clone(known));
    }
    let forward = kind.attributes.forward()?;
    let forward = kind.arrays.forward(forward, kind.specs[0].shape.heads);
    let backward = |forward: &_| (kind.arrays).backward(kind.attributes.backward(forward));
    let problem = problem(&kind.specs, &forward, backward);
    let plans = Arc::new(Plans::new(problem?, here));
    let mut known = lock(&KNOWN);
    if known.len() >= MOST {
        known.clear(); // those that are still called come back
    }
    known.insert(kind, Arc::clone(&plans));
    Ok(plans)
}
