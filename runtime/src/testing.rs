//! What the unit tests of several modules share.

/// The seed of a randomised test: random, printed, and taken from `SYNOD_TEST_SEED` to repeat a failure.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("SYNOD_TEST_SEED").ok();
    let seed = given.map_or_else(rand::random, |seed| seed.parse().expect("SYNOD_TEST_SEED is a whole number"));
    println!("SYNOD_TEST_SEED={seed}");
    seed
}
