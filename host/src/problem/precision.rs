/// How closely f32 products follow f32's own arithmetic. It says nothing of f16 and bf16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// Every result holds f32's error bound: tensor cores may multiply numbers as sums of tf32 parts, of which each product is
    /// exact to 2⁻²¹ (docs/numerics.md).
    #[default]
    Bounded,
    /// Every product and sum is rounded as f32's (IEEE 754): on a GPU, by [`Simt`](crate::Variant::Simt).
    Ieee,
}
