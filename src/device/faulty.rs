//! A decorator that plants faults.
