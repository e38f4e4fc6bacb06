//! The cases of spec/domains.md section 4, by number, over the real Supervisor.

mod cases;
mod crashes;
mod explore;
mod steps;
