//! How the library's types are written in a corpus of cases ([`super::corpus`]): by their names.

use ferroflash::{DType, Layout, Mask};
use serde::{Deserialize, Serialize};

/// [`Layout`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Layout")]
pub enum LayoutText {
    /// [`Layout::Bshd`].
    Bshd,
    /// [`Layout::Bhsd`].
    Bhsd,
}

/// The dtype of this name.
fn dtype_of<E: serde::de::Error>(name: &str) -> Result<DType, E> {
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
    dtype.ok_or_else(|| E::custom(format!("no dtype is called `{name}`")))
}

/// A [`DType`] by its name.
pub mod dtype {
    use super::{DType, Deserialize, Serialize, dtype_of};

    pub fn serialize<S: serde::Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        dtype.name().serialize(to)
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        dtype_of(&String::deserialize(from)?)
    }
}

/// The axes of a bias that hold for all, and its dtype.
pub mod bias {
    use super::{DType, Deserialize, Serialize, dtype_of};

    type Bias<T> = Option<([bool; 3], T)>;

    pub fn serialize<S: serde::Serializer>(bias: &Bias<DType>, to: S) -> Result<S::Ok, S::Error> {
        bias.map(|(axes, dtype)| (axes, dtype.name())).serialize(to)
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Bias<DType>, D::Error> {
        let bias: Bias<String> = Option::deserialize(from)?;
        let of_name = |(axes, name): ([bool; 3], String)| Ok((axes, dtype_of(&name)?));
        bias.map(of_name).transpose()
    }
}

/// A [`Mask`].
pub mod mask {
    use serde::ser::Error as _;

    use super::{Deserialize, Mask, Serialize};

    /// Its kinds, with the names of their fields.
    #[derive(Serialize, Deserialize)]
    enum Text {
        None,
        Causal,
        Window {
            left: Option<u32>,
            right: Option<u32>,
        },
        Band {
            lower: Option<i32>,
            upper: Option<i32>,
        },
    }

    pub fn serialize<S: serde::Serializer>(mask: &Mask, to: S) -> Result<S::Ok, S::Error> {
        let text = match *mask {
            Mask::None => Text::None,
            Mask::Causal => Text::Causal,
            Mask::Window { left, right } => Text::Window { left, right },
            Mask::Band { lower, upper } => Text::Band { lower, upper },
            _ => return Err(S::Error::custom(format!("no text for {mask}"))),
        };
        text.serialize(to)
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Mask, D::Error> {
        Ok(match Text::deserialize(from)? {
            Text::None => Mask::None,
            Text::Causal => Mask::Causal,
            Text::Window { left, right } => Mask::Window { left, right },
            Text::Band { lower, upper } => Mask::Band { lower, upper },
        })
    }
}
