//! How classes share what there is: floors and priorities.

use super::*;

/// Callers of each class, in so many processes, that always want more; what each class got.
async fn saturate(place: &Place, (processes, callers): (usize, usize), time: Duration) -> Vec<usize> {
    let end = clock().now() + time;
    let mut all = JoinSet::new();
    for _ in 0..processes {
        let store = place.store();
        for (nth, class) in place.settings.classes.iter().enumerate() {
            let pacer = place.pacer(&store, &class.name);
            for _ in 0..callers {
                let pacer = Arc::clone(&pacer);
                all.spawn(async move {
                    let mut got = 0;
                    while clock().now() < end {
                        let Ok(mut turn) = pacer.enter(end).await else { break };
                        got += usize::from(turn.slot().await.is_ok());
                    }
                    (nth, got)
                });
            }
        }
    }
    let mut by_class = vec![0; place.settings.classes.len()];
    for (nth, got) in all.join_all().await {
        by_class[nth] += got;
    }
    by_class
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * f64::from(u32::try_from(part).unwrap()) / f64::from(u32::try_from(whole.max(1)).unwrap())
}

/// Three classes that always want more, with floors of 20 and 10 % for the lower two, and the same without floors.
async fn share_out(limit: u32, (window, jitter): (u32, u32), processes: usize) {
    let time = seconds(6);
    for floors in [true, false] {
        let floor = |percent| if floors { percent } else { 0 };
        let classes = vec![rule("first", 1, 0), rule("second", 2, floor(20)), rule("third", 3, floor(10))];
        let place = Place::new(settings(limit, (window, jitter), classes)).await;
        let got = saturate(&place, (processes, 3), time).await;
        let all: usize = got.iter().sum();
        let shares: Vec<f64> = got.iter().map(|got| percent(*got, all)).collect();
        let most = time.as_secs_f64() / place.settings.interval().as_secs_f64();
        println!(
            "{limit}/s, {processes} processes, floors {floors}: {all} slots in {time:?} of {most:.0}, shares {shares:.1?} %"
        );
        if floors {
            // One slot is what a class can be short of at the edges of the time.
            let edge = percent(1, all);
            assert!(shares[1] >= 19.0 - edge && shares[2] >= 9.0 - edge, "{shares:?}");
        } else {
            assert!(shares[1] + shares[2] < 5.0, "{shares:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_are_kept_under_saturation_and_without_them_the_lower_classes_starve() {
    share_out(60, (20, 5), 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_are_kept_and_priorities_hold_at_the_contracts_own_rate() {
    share_out(18, (100, 50), 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn priorities_hold_among_two_gateways() {
    share_out(60, (20, 5), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn priorities_hold_in_a_gateway_that_is_alone() {
    share_out(60, (20, 5), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_is_alone_gets_the_whole_rate() {
    let time = seconds(4);
    let place = Place::new(settings(18, (100, 50), vec![rule("inquiry", 3, 10), rule("mutation", 1, 0)])).await;
    let alone = Settings { classes: vec![rule("inquiry", 3, 10)], ..place.settings.clone() };
    let place = Place { settings: alone, ..place };
    let got = saturate(&place, (4, 3), time).await[0];
    let most = time.as_secs_f64() / place.settings.interval().as_secs_f64();
    let share = f64::from(u32::try_from(got).unwrap()) / most;
    println!("{got} slots in {time:?}, {:.1} % of the rate", share * 100.0);
    // Of some sixty one is lost at the edge of the time.
    assert!(share + 1.0 / most >= 0.95, "{share}");
}
