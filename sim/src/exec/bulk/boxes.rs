//! The rows of a tensor box: where they lie in global memory and in shared memory.

use crate::tensor_map::TensorMap;

/// One row of a box (its innermost dimension).
pub(crate) struct Row {
    /// Bytes from the box's start in shared memory, without swizzle.
    pub(crate) offset: u64,
    /// Elements `first..last` of the row lie inside the tensor; none if `first == last`.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Global address of element `first`.
    pub(crate) address: u64,
}

/// Every row of the box at `coords`, in the order of shared memory.
pub(crate) fn rows(map: &TensorMap, coords: &[i32; 5]) -> impl Iterator<Item = Row> {
    let rank = map.dims.len();
    let inner = i64::from(coords[0]);
    let width = i64::from(map.box_dims[0]);
    let low = (-inner).clamp(0, width);
    let high = (map.dims[0] as i64 - inner).clamp(low, width);
    (0..map.rows()).map(move |index| {
        let mut rest = index;
        let mut inside = true;
        let mut address = map.address as i128;
        let outer = coords[1..rank].iter().zip(&map.box_dims[1..]);
        for ((&start, &size), (&dim, &stride)) in outer.zip(map.dims[1..].iter().zip(&map.strides))
        {
            let at = i64::from(start) + (rest % u64::from(size)) as i64;
            rest /= u64::from(size);
            inside &= at >= 0 && (at as u64) < dim;
            address += i128::from(at) * i128::from(stride);
        }
        address += i128::from(inner + low) * i128::from(map.ty.bytes());
        let (first, last) = if inside { (low, high) } else { (0, 0) };
        Row {
            offset: index * map.row_bytes(),
            first: first as u64,
            last: last as u64,
            address: address as u64,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_map::{OutOfBoundsFill, Swizzle, TensorMapType};

    #[test]
    fn rows_are_clipped_to_the_tensor() {
        let map = TensorMap {
            ty: TensorMapType::F32,
            address: 0x1000,
            dims: vec![10, 3],
            strides: vec![48],
            box_dims: vec![8, 2],
            swizzle: Swizzle::None,
            fill: OutOfBoundsFill::Zeros,
        };
        let at = |x, y| {
            rows(&map, &[x, y, 0, 0, 0])
                .map(|r| (r.offset, r.first, r.last, r.address))
                .collect::<Vec<_>>()
        };
        assert_eq!(at(0, 0), [(0, 0, 8, 0x1000), (32, 0, 8, 0x1030)]);
        assert_eq!(at(4, 2), [(0, 0, 6, 0x1070), (32, 0, 0, 0x10a0)]);
        assert_eq!(at(-3, -1)[1], (32, 3, 8, 0x1000));
        assert_eq!(at(-3, -1)[0].1, at(-3, -1)[0].2);
        assert!(at(20, 0).iter().all(|r| r.1 == r.2));
    }
}
