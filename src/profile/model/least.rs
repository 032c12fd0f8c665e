//! Least squares without negative parts (Lawson and Hanson 1974, *Solving least squares problems*, chapter 23).

use crate::base::stats::inverse;

/// Terms of a sum.
pub(super) const TERMS: usize = 9;

/// The non-negative solution of least squares by its normal equations.
pub(super) fn non_negative(normal: &[[f64; TERMS]; TERMS], right: &[f64; TERMS]) -> [f64; TERMS] {
    let scale: [f64; TERMS] = std::array::from_fn(|i| if normal[i][i] > 0.0 { normal[i][i].sqrt() } else { 0.0 });
    let usable: Vec<usize> = (0..TERMS).filter(|i| scale[*i] > 0.0).collect();
    let a = |i: usize, j: usize| normal[i][j] / (scale[i] * scale[j]) + if i == j { 1e-9 } else { 0.0 };
    let b = |i: usize| right[i] / scale[i];
    let mut x = [0.0; TERMS];
    let mut active: Vec<usize> = Vec::new();
    for _ in 0..3 * TERMS {
        let pull = |i: usize| b(i) - active.iter().map(|j| a(i, *j) * x[*j]).sum::<f64>();
        let next = usable.iter().copied().filter(|i| !active.contains(i) && pull(*i) > 1e-9);
        let Some(next) = next.max_by(|i, j| pull(*i).total_cmp(&pull(*j))) else { break };
        active.push(next);
        while !active.is_empty() {
            let rows: Vec<Vec<f64>> = active.iter().map(|i| active.iter().map(|j| a(*i, *j)).collect()).collect();
            let Some(inverse) = inverse(rows) else {
                active.pop();
                break;
            };
            let z: Vec<f64> = inverse.iter().map(|row| row.iter().zip(&active).map(|(v, j)| v * b(*j)).sum()).collect();
            // As far towards the solution as all stay positive; who reaches zero leaves.
            let mut part = 1.0f64;
            for (i, z) in active.iter().zip(&z) {
                if *z <= 0.0 {
                    part = part.min(x[*i] / (x[*i] - z).max(f64::MIN_POSITIVE));
                }
            }
            for (i, z) in active.iter().zip(&z) {
                x[*i] += part * (z - x[*i]);
            }
            let zero: Vec<usize> =
                active.iter().zip(&z).filter(|(i, z)| **z <= 0.0 && x[**i] <= 1e-12).map(|(i, _)| *i).collect();
            if zero.is_empty() {
                break;
            }
            for i in zero {
                x[i] = 0.0;
                active.retain(|j| *j != i);
            }
        }
    }
    std::array::from_fn(|i| if scale[i] > 0.0 { x[i].max(0.0) / scale[i] } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_solution_has_no_negative_part() {
        // y = 2 a - b: the best without the negative part is a alone.
        let mut normal = [[0.0; TERMS]; TERMS];
        let mut right = [0.0; TERMS];
        for i in 1..=5 {
            let (a, b) = (f64::from(i), f64::from(i * i) / 10.0);
            let y = 2.0 * a - b;
            for (r, v) in [a, b].into_iter().enumerate() {
                right[r] += v * y;
                normal[r][0] += v * a;
                normal[r][1] += v * b;
            }
        }
        let x = non_negative(&normal, &right);
        assert!(x[1] == 0.0 && (x[0] - right[0] / normal[0][0]).abs() < 1e-6, "{x:?}");
        right[1] = normal[1][0] + 3.0 * normal[1][1];
        right[0] = normal[0][0] + 3.0 * normal[0][1];
        let x = non_negative(&normal, &right);
        assert!((x[0] - 1.0).abs() < 1e-5 && (x[1] - 3.0).abs() < 1e-5, "{x:?}");
    }
}
