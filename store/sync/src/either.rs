/// A message of one of two queues.
#[derive(Debug)]
pub enum Either<A, B> {
    /// Of the first.
    One(A),
    /// Of the second.
    Other(B),
}
