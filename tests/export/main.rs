//! The meta root is lost, at any moment: the data root alone gives a pool back, as it was at the last export or later.

#[path = "../common/mod.rs"]
mod common;
mod crashes;
mod damage;
mod failing;
#[path = "../common/falsify.rs"]
mod falsify;
mod interplay;
mod less;
mod life;
mod refused;
mod site;
mod space;
mod trial;
mod verify;
