//! Mutation.
