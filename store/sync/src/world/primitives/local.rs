//! Values of each task.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::thread::LocalKey as SystemKey;

use crate::world::state;

/// The values of all tasks: by life and task.
pub type Values<T> = RefCell<BTreeMap<(u64, usize), Rc<T>>>;

/// A value that each task has for itself.
#[derive(Debug)]
pub struct LocalKey<T: 'static> {
    #[doc(hidden)]
    pub values: &'static SystemKey<Values<T>>,
    #[doc(hidden)]
    pub make: fn() -> T,
}

impl<T: 'static> LocalKey<T> {
    /// Acts on the value of the calling task.
    pub fn with<R>(&'static self, act: impl FnOnce(&T) -> R) -> R {
        let (life, task) = state::task();
        let value = self.values.with_borrow_mut(|values| {
            let value = values.entry((life, task)).or_insert_with(|| Rc::new((self.make)())).clone();
            // Those of earlier lives are gone with their tasks.
            if values.first_key_value().is_some_and(|((of, _), _)| *of < life) {
                values.retain(|(of, _), _| *of == life);
            }
            value
        });
        act(&value)
    }
}

impl<T: Copy + 'static> LocalKey<Cell<T>> {
    /// The value of the calling task.
    pub fn get(&'static self) -> T {
        self.with(Cell::get)
    }

    /// Sets the value of the calling task.
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }
}

impl<T: 'static> LocalKey<RefCell<T>> {
    /// Acts on the value of the calling task.
    pub fn with_borrow_mut<R>(&'static self, act: impl FnOnce(&mut T) -> R) -> R {
        self.with(|cell| act(&mut cell.borrow_mut()))
    }
}

/// Declares values of each thread, as [`std::thread_local!`].
#[macro_export]
macro_rules! local_to_tasks {
    () => {};
    ($(#[$attribute:meta])* $vis:vis static $name:ident: $type:ty = const { $make:expr }; $($rest:tt)*) => {
        $crate::local_to_tasks!($(#[$attribute])* $vis static $name: $type = $make; $($rest)*);
    };
    ($(#[$attribute:meta])* $vis:vis static $name:ident: $type:ty = $make:expr; $($rest:tt)*) => {
        $(#[$attribute])*
        $vis static $name: $crate::LocalKey<$type> = {
            std::thread_local! { static VALUES: $crate::Values<$type> = const { std::cell::RefCell::new(std::collections::BTreeMap::new()) }; }
            $crate::LocalKey { values: &VALUES, make: || $make }
        };
        $crate::local_to_tasks!($($rest)*);
    };
}
