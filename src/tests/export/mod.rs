//! The meta root is lost, at any moment: the data root alone gives a pool back, as it was at the last export or later.

mod crashes;
mod damage;
mod failing;
mod foreign;
mod held;
mod interplay;
mod less;
mod life;
mod refused;
pub(crate) mod site;
mod space;
mod trial;
mod verify;
