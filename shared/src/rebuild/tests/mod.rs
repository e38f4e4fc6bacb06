//! Tests of the gates on real plans: the numbered cases of spec/rebuild.md section 4, every rule and code, mutations
//! and fuzz.

mod cases;
mod function;
mod harness;
mod mutation;
mod rules;
mod workflow;
