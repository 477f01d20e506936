//! Making the next guide beside lookups and checkpoints.
//!
//! Part by part of the new file the cells of all sources are read in the order of their files, sorted and written. Memory: 16 bytes for each
//! cell of a part, half a million in the mean, as much to sort them, and then 25 MiB to write the part.
//!
//! The guide is complete on disk before a checkpoint names it in its manifest; until then no lookup knows it.

use std::collections::HashMap;
use std::sync::Arc;

use dedupfs_store::Result;
use dedupfs_store::profile::{self, Component};

use super::file::Place;
use super::plan::{GROUP, Plan, Size, plan};
use super::{Guide, GuideFile, Guided, Key, TANKERS_MAX, fit, guided_by};
use crate::index::Index;
use crate::names::{guide_name, join};
use crate::prefixes::Prefixes;
use crate::sealed::{SealedSet, SealedTanker};

/// A guide that the next checkpoint publishes.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    /// `None`: all tankers of the replaced ones are gone.
    pub(crate) guide: Option<Arc<Guide>>,
    pub(crate) replaces: Vec<u64>,
}

/// The state of making guides.
#[derive(Default, Debug)]
pub(crate) struct GuideWork {
    pub(crate) built: Option<Built>,
    /// The file that is being written.
    making: Option<String>,
}

impl GuideWork {
    /// The guide that is made and not published.
    pub(crate) fn unpublished(&self) -> Option<Arc<Guide>> {
        self.built.as_ref().and_then(|built| built.guide.clone())
    }

    /// The file that no manifest names yet.
    pub(crate) fn file(&self) -> Option<String> {
        let built = self.built.as_ref().and_then(|built| built.guide.as_ref());
        let name = built.map(|guide| guide_name(guide.file.names.id, guide.file.names.generation));
        name.or_else(|| self.making.clone())
    }
}

/// The tankers and guides from which the next guide is made.
struct Sources<'s> {
    tankers: Vec<(&'s SealedTanker, u16)>,
    /// Guides, with the new number of each of their tankers.
    guides: Vec<(&'s Guide, HashMap<u16, u16>)>,
    /// The tankers of the new guide.
    ids: Vec<u64>,
    cells: u64,
}

impl<'s> Sources<'s> {
    fn new(set: &'s SealedSet, unguided: &[&'s Arc<SealedTanker>], plan: &Plan) -> Self {
        let mut sources = Self { tankers: Vec::new(), guides: Vec::new(), ids: Vec::new(), cells: 0 };
        let by_id: HashMap<u64, &Arc<SealedTanker>> = set.tankers().iter().map(|tanker| (tanker.id, tanker)).collect();
        let renewed = plan.renewed.iter().filter_map(|number| set.guides().get(*number));
        let renewed =
            renewed.flat_map(|guided| &guided.guide.file.names.tankers).filter_map(|id| by_id.get(id).copied());
        for tanker in plan.tankers.iter().filter_map(|number| unguided.get(*number).copied()).chain(renewed) {
            sources.tankers.push((tanker, sources.ids.len() as u16));
            sources.ids.push(tanker.id);
            sources.cells += u64::from(tanker.cells());
        }
        for guided in plan.taken.iter().filter_map(|number| set.guides().get(*number)) {
            let mut numbers = HashMap::new();
            for (number, id) in (0..).zip(&guided.guide.file.names.tankers) {
                if by_id.contains_key(id) {
                    numbers.insert(number, sources.ids.len() as u16);
                    sources.ids.push(*id);
                }
            }
            sources.cells += guided.guide.file.cells();
            sources.guides.push((&guided.guide, numbers));
        }
        sources
    }

    /// The cells of a range, in order.
    fn places_of(&self, prefixes: Prefixes) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        for &(tanker, number) in &self.tankers {
            tanker.for_each_prefix(prefixes, &mut |prefix| places.push((Key::of_prefix(prefix), number)))?;
        }
        for (guide, numbers) in &self.guides {
            guide.file.for_each_place(prefixes, &mut |(key, number)| {
                places.extend(numbers.get(&number).map(|number| (key, *number)));
            })?;
        }
        // Each source gave a run in order.
        places.sort();
        Ok(places)
    }
}

impl Index {
    /// Loads the filters of guides as memory allows, and makes the next guide if one is due: the next checkpoint publishes it. Asks `go_on`
    /// before each part of it, and ends when it says no. Returns whether a guide was made. One thread at a time.
    ///
    /// Cost: of each tanker that becomes guided its cells are read, 48 bytes each, and several times for a guide to more than a billion cells;
    /// 10 bytes are written for each cell of the new guide, and read of those that it replaces. See the head of `plan` for how often.
    ///
    /// # Errors
    /// A tanker or guide cannot be read, or the guide cannot be written: nothing has changed.
    pub fn tend_guides(&self, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        self.load_guides(go_on);
        // Before the set: one that a checkpoint publishes meanwhile is in it.
        if self.guide_work.lock().built.is_some() {
            return Ok(false);
        }
        let set = self.sealed_set();
        let guided = guided_by(set.guides().iter().map(|guided| &guided.guide));
        let unguided: Vec<&Arc<SealedTanker>> =
            set.tankers().iter().rev().filter(|tanker| !guided.contains(&tanker.id)).collect();
        let cells: Vec<u64> = unguided.iter().map(|tanker| u64::from(tanker.cells())).collect();
        let size =
            |guided: &Guided| Size { cells: guided.guide.file.cells(), living: guided.living_cells(set.tankers()) };
        let sizes: Vec<Size> = set.guides().iter().map(size).collect();
        let Some(plan) = plan(&cells, &sizes, GROUP) else { return Ok(false) };
        let _timed = profile::of(Component::Guides);
        let sources = Sources::new(&set, &unguided, &plan);
        if sources.ids.len() > TANKERS_MAX || !go_on() {
            return Ok(false);
        }
        let replaced = plan.taken.iter().chain(&plan.renewed).filter_map(|number| set.guides().get(*number));
        let replaces = replaced.map(|guided| guided.guide.id()).collect();
        let guide = if sources.ids.is_empty() { None } else { self.make_guide(&sources, go_on)? };
        if let Some(guide) = &guide {
            // A lookup asks it page by page until it has filters.
            self.fit_guides(Some(guide), go_on);
        }
        let is_made = guide.is_some();
        if is_made || sources.ids.is_empty() {
            let mut work = self.guide_work.lock();
            work.making = None;
            work.built = Some(Built { guide, replaces });
        }
        Ok(is_made)
    }

    fn make_guide(&self, sources: &Sources<'_>, go_on: &mut dyn FnMut() -> bool) -> Result<Option<Arc<Guide>>> {
        let (id, generation) = {
            let mut checkpointer = self.checkpointer.lock();
            checkpointer.generation += 1;
            checkpointer.next_tanker += 1;
            let ids = (checkpointer.next_tanker - 1, checkpointer.generation);
            self.guide_work.lock().making = Some(guide_name(ids.0, ids.1));
            ids
        };
        let mut places_of = |prefixes| if go_on() { sources.places_of(prefixes).map(Some) } else { Ok(None) };
        let ids = sources.ids.clone();
        let made = GuideFile::write(self.writer(), (id, generation), ids, sources.cells, &mut places_of);
        if !matches!(made, Ok(Some(_))) {
            // After an error room may be short. Whoever ends the work may want nothing to be written: then the next checkpoint removes it.
            if made.is_err() {
                let _stays = self.device.remove(&join(&self.directory, &guide_name(id, generation)));
            }
            self.guide_work.lock().making = None;
            self.checkpointer.lock().has_leftovers = true;
        }
        Ok(made?.map(|file| Arc::new(Guide::new(file))))
    }

    /// Loads the filters of guides as far as the filter array leaves memory. Further tankers in the array may take the rest of the limit. Until
    /// then guides are asked page by page. Asks `go_on` before each part of a guide, and ends when it says no.
    pub fn load_guides(&self, go_on: &mut dyn FnMut() -> bool) {
        self.fit_guides(None, go_on);
    }

    /// Loads the filters of all guides, also of one that no checkpoint has published yet.
    fn fit_guides(&self, made: Option<&Arc<Guide>>, go_on: &mut dyn FnMut() -> bool) {
        let _one = self.guides_loading.lock();
        // Before the set: one that a checkpoint publishes meanwhile is in it.
        let built = self.guide_work.lock().unpublished();
        let mut guides: Vec<Arc<Guide>> =
            self.sealed_set().guides().iter().map(|guided| guided.guide.clone()).collect();
        let unpublished = built.iter().chain(made).filter(|guide| guides.iter().all(|other| other.id() != guide.id()));
        let unpublished: Vec<Arc<Guide>> = unpublished.cloned().collect();
        guides.extend(unpublished);
        let _timed = (!guides.is_empty()).then(|| profile::of(Component::Guides));
        let limit_bytes = self.filter_limit_bytes();
        fit(&guides, limit_bytes.saturating_sub(self.filters.sizes().bytes), go_on);
        let bytes: u64 = guides.iter().map(|guide| guide.filter_bytes()).sum();
        self.filters.set_limit_bytes(limit_bytes.saturating_sub(bytes));
    }
}
