//! A model of aging: how many tankers there are, and how often cells are written again, by the share at which a tanker is dissolved. It tests
//! the choice of docs/decisions/0062, not the code.

use crate::options::DISSOLVE_DIVISOR;

/// A pool in which each new tanker comes while all others lose the share `lost` of their cells. Returns tankers for each full tanker of
/// cells, and cells written again for each new cell, both as means of the second half of the steps.
fn aged(dissolved_below: f64, lost: f64) -> (f64, f64) {
    const STEPS: u32 = 2000;
    let (mut tankers, mut open, mut again) = (Vec::<f64>::new(), 0.0, 0.0);
    let (mut count, mut cells) = (0.0, 0.0);
    for step in 0..STEPS {
        open += 1.0;
        tankers.retain_mut(|tanker| {
            *tanker *= 1.0 - lost;
            let stays = *tanker >= dissolved_below;
            if !stays {
                open += *tanker;
                again += if step >= STEPS / 2 { *tanker } else { 0.0 };
            }
            stays
        });
        while open >= 1.0 {
            tankers.push(1.0);
            open -= 1.0;
        }
        if step >= STEPS / 2 {
            count += tankers.len() as f64;
            cells += tankers.iter().sum::<f64>();
        }
    }
    (count / cells, again / f64::from(STEPS / 2))
}

#[test]
fn dissolving_earlier_writes_more_cells_again_than_it_spares_tankers() {
    for lost in [0.005, 0.02, 0.1] {
        let (tankers, again) = aged(1.0 / f64::from(DISSOLVE_DIVISOR), lost);
        let (fewer, more) = aged(0.5, lost);
        println!("losing {lost}: {tankers:.2} tankers, {again:.2} cells again; below a half {fewer:.2} and {more:.2}");
        assert!(tankers < 1.9 && again < 0.35, "{tankers} tankers, {again} cells again");
        assert!(fewer > tankers * 0.7 && more > again * 2.5, "{fewer} tankers, {more} cells again");
    }
}
