//! The built functions, driven as Lambda drives them: a fake Runtime API, a scripted AWS in front of a real
//! DynamoDB table, and a CloudFormation that moves when the test says so.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "functions/install.rs"]
mod install;
#[path = "functions/link_details.rs"]
mod link_details;
#[path = "functions/model_check.rs"]
mod model_check;
#[path = "functions/updater_course.rs"]
mod updater_course;
#[path = "functions/updater_door.rs"]
mod updater_door;
#[path = "functions/updater_faults.rs"]
mod updater_faults;
#[path = "functions/updater_races.rs"]
mod updater_races;
