//! The directories in memory: the names there are now, the names on the disk, and the changes
//! that lie between.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Component, Path};
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::io::Errno;

use super::PowerCut;
use super::inode::{FileState, Inode};
use super::random::Random;

type Name = Arc<str>;
type Names = BTreeMap<Name, Node>;
pub(super) type DirId = usize;

const ROOT: DirId = 0;

#[derive(Clone)]
pub(super) enum Node {
    File(Arc<Inode>),
    Dir(DirId),
}

#[derive(Clone, Default)]
struct Dir {
    now: Names,
    durable: Names,
}

/// One name set to a file or directory, or taken away.
#[derive(Clone)]
struct Edit {
    dir: DirId,
    name: Name,
    node: Option<Node>,
}

/// What one call did to names; on the disk it happens whole or not at all.
#[derive(Clone)]
struct Change {
    edit: Edit,
    /// A rename takes the old name away with the same change.
    second: Option<Edit>,
    /// A sync of its directory has failed: the next one does not bring it to the disk.
    is_lost: bool,
}

impl Change {
    fn edits(&self) -> impl Iterator<Item = &Edit> {
        std::iter::once(&self.edit).chain(&self.second)
    }

    fn names(&self) -> impl Iterator<Item = (DirId, Name)> {
        self.edits().map(|edit| (edit.dir, Arc::clone(&edit.name)))
    }
}

/// The names of a file system.
pub(super) struct Tree {
    /// By `DirId`; a removed directory stays as an empty one.
    dirs: Vec<Dir>,
    /// Changes that no sync of a directory covered, oldest first.
    pending: Vec<Change>,
    next_inode: u64,
}

/// A name in a directory that exists; the name itself may not.
struct Place<'a> {
    dir: DirId,
    name: &'a str,
}

/// The names of a path, without `/` and `.`.
fn names(path: &Path) -> impl Iterator<Item = Result<&str, Errno>> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_str().ok_or(Errno::INVAL)),
        Component::ParentDir | Component::Prefix(_) => Some(Err(Errno::INVAL)),
        Component::RootDir | Component::CurDir => None,
    })
}

impl Tree {
    pub(super) fn new() -> Self {
        Self {
            dirs: vec![Dir::default()],
            pending: Vec::new(),
            next_inode: 1,
        }
    }

    fn node(&self, place: &Place<'_>) -> Option<&Node> {
        self.dirs[place.dir].now.get(place.name)
    }

    /// Where a path leads; `passed` gets the directories on the way.
    fn place<'a>(&self, path: &'a Path, mut passed: impl FnMut(DirId)) -> Result<Place<'a>, Errno> {
        let mut names = names(path);
        // The root has no name in any directory.
        let mut name = names.next().unwrap_or(Err(Errno::ISDIR))?;
        let mut dir = ROOT;
        passed(dir);
        for next in names {
            dir = match self.dirs[dir].now.get(name) {
                Some(Node::Dir(id)) => *id,
                Some(Node::File(_)) => return Err(Errno::NOTDIR),
                None => return Err(Errno::NOENT),
            };
            passed(dir);
            name = next?;
        }
        Ok(Place { dir, name })
    }

    fn find(&self, path: &Path) -> Result<Node, Errno> {
        if names(path).next().is_none() {
            return Ok(Node::Dir(ROOT));
        }
        let place = self.place(path, |_| ())?;
        self.node(&place).cloned().ok_or(Errno::NOENT)
    }

    pub(super) fn file(&self, path: &Path) -> Result<Arc<Inode>, Errno> {
        match self.find(path)? {
            Node::File(inode) => Ok(inode),
            Node::Dir(_) => Err(Errno::ISDIR),
        }
    }

    /// The file, or none for a directory.
    pub(super) fn file_or_dir(&self, path: &Path) -> Result<Option<Arc<Inode>>, Errno> {
        Ok(match self.find(path)? {
            Node::File(inode) => Some(inode),
            Node::Dir(_) => None,
        })
    }

    pub(super) fn dir(&self, path: &Path) -> Result<DirId, Errno> {
        match self.find(path)? {
            Node::File(_) => Err(Errno::NOTDIR),
            Node::Dir(dir) => Ok(dir),
        }
    }

    pub(super) fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        let dir = self.dir(path)?;
        Ok(self.dirs[dir]
            .now
            .keys()
            .map(|name| String::from(&**name))
            .collect())
    }

    fn edit_now(&mut self, edit: &Edit) {
        let names = &mut self.dirs[edit.dir].now;
        let before = match &edit.node {
            Some(node) => {
                if let Node::File(inode) = node {
                    inode.state.write().links += 1;
                }
                names.insert(Arc::clone(&edit.name), node.clone())
            }
            None => names.remove(&edit.name),
        };
        if let Some(Node::File(inode)) = before {
            inode.state.write().links -= 1;
        }
    }

    fn change(&mut self, edit: Edit, second: Option<Edit>) {
        let change = Change {
            edit,
            second,
            is_lost: false,
        };
        for edit in change.edits() {
            self.edit_now(edit);
        }
        self.write_again(&change);
        self.pending.push(change);
    }

    /// What was lost is to be written again with a change that rests on it.
    fn write_again(&mut self, change: &Change) {
        if !self.pending.iter().any(|pending| pending.is_lost) {
            return;
        }
        let mut names: HashSet<(DirId, Name)> = change.names().collect();
        let mut count = 0;
        while count < names.len() {
            count = names.len();
            for pending in &mut self.pending {
                if pending.names().any(|name| names.contains(&name)) {
                    pending.is_lost = false;
                    names.extend(pending.names());
                }
            }
        }
    }

    fn set(&mut self, place: &Place<'_>, node: Option<Node>) {
        self.change(
            Edit {
                dir: place.dir,
                name: place.name.into(),
                node,
            },
            None,
        );
    }

    /// The file of that name, made if it is not there; true if it was made.
    pub(super) fn create(&mut self, path: &Path) -> Result<(Arc<Inode>, bool), Errno> {
        let place = self.place(path, |_| ())?;
        match self.node(&place) {
            Some(Node::Dir(_)) => Err(Errno::ISDIR),
            Some(Node::File(inode)) => Ok((Arc::clone(inode), false)),
            None => {
                let state = RwLock::new(FileState::default());
                let inode = Arc::new(Inode {
                    id: self.next_inode,
                    state,
                });
                self.next_inode += 1;
                self.set(&place, Some(Node::File(Arc::clone(&inode))));
                Ok((inode, true))
            }
        }
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> Result<(), Errno> {
        let mut dir = ROOT;
        let mut rest = names(path).peekable();
        while let Some(name) = rest.next() {
            let place = Place { dir, name: name? };
            dir = match self.node(&place) {
                Some(Node::Dir(id)) => *id,
                Some(Node::File(_)) if rest.peek().is_some() => return Err(Errno::NOTDIR),
                Some(Node::File(_)) => return Err(Errno::EXIST),
                None => {
                    let id = self.dirs.len();
                    self.dirs.push(Dir::default());
                    self.set(&place, Some(Node::Dir(id)));
                    id
                }
            };
        }
        Ok(())
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> Result<(), Errno> {
        let place = self.place(path, |_| ())?;
        match self.node(&place) {
            None => Err(Errno::NOENT),
            Some(Node::Dir(_)) => Err(Errno::ISDIR),
            Some(Node::File(_)) => {
                self.set(&place, None);
                Ok(())
            }
        }
    }

    pub(super) fn remove_dir(&mut self, path: &Path) -> Result<(), Errno> {
        if names(path).next().is_none() {
            return Err(Errno::BUSY);
        }
        let place = self.place(path, |_| ())?;
        match self.node(&place) {
            None => Err(Errno::NOENT),
            Some(Node::File(_)) => Err(Errno::NOTDIR),
            Some(Node::Dir(dir)) if !self.dirs[*dir].now.is_empty() => Err(Errno::NOTEMPTY),
            Some(Node::Dir(_)) => {
                self.set(&place, None);
                Ok(())
            }
        }
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<(), Errno> {
        let mut above_from = Vec::new();
        let mut above_to = Vec::new();
        let from = self.place(from, |dir| above_from.push(dir))?;
        let to = self.place(to, |dir| above_to.push(dir))?;
        let node = self.node(&from).cloned().ok_or(Errno::NOENT)?;
        if matches!(&node, Node::Dir(dir) if above_to.contains(dir)) {
            return Err(Errno::INVAL);
        }
        match (&node, self.node(&to)) {
            (_, None) => {}
            // Two names of one file: the call does nothing and says that it did.
            (Node::File(a), Some(Node::File(b))) if Arc::ptr_eq(a, b) => return Ok(()),
            (Node::Dir(a), Some(Node::Dir(b))) if a == b => return Ok(()),
            (Node::File(_), Some(Node::File(_))) => {}
            (_, Some(Node::Dir(dir))) if above_from.contains(dir) => return Err(Errno::NOTEMPTY),
            (Node::File(_), Some(Node::Dir(_))) => return Err(Errno::ISDIR),
            (Node::Dir(_), Some(Node::File(_))) => return Err(Errno::NOTDIR),
            (Node::Dir(_), Some(Node::Dir(dir))) => {
                if !self.dirs[*dir].now.is_empty() {
                    return Err(Errno::NOTEMPTY);
                }
            }
        }
        let set = Edit {
            dir: to.dir,
            name: to.name.into(),
            node: Some(node),
        };
        let unset = Edit {
            dir: from.dir,
            name: from.name.into(),
            node: None,
        };
        self.change(set, Some(unset));
        Ok(())
    }

    pub(super) fn hard_link(&mut self, from: &Path, to: &Path) -> Result<(), Errno> {
        let node = self.find(from)?;
        let to = self.place(to, |_| ())?;
        if self.node(&to).is_some() {
            return Err(Errno::EXIST);
        }
        if matches!(node, Node::Dir(_)) {
            return Err(Errno::PERM);
        }
        self.set(&to, Some(node));
        Ok(())
    }

    fn edit_durable(&mut self, edit: &Edit) {
        let names = &mut self.dirs[edit.dir].durable;
        match &edit.node {
            Some(node) => names.insert(Arc::clone(&edit.name), node.clone()),
            None => names.remove(&edit.name),
        };
    }

    /// For each pending change whether a sync of `dir` concerns it: those that touch it, and what they rest on: a change
    /// that moves a name in from elsewhere needs the earlier ones of that name.
    fn concerned(&self, dir: DirId) -> Vec<bool> {
        let mut needed: HashSet<(DirId, Name)> = HashSet::new();
        let mut concerned = vec![false; self.pending.len()];
        for (change, concerned) in self.pending.iter().zip(&mut concerned).rev() {
            *concerned = change.edits().any(|edit| {
                edit.dir == dir
                    || !needed.is_empty() && needed.contains(&(edit.dir, Arc::clone(&edit.name)))
            });
            if *concerned {
                needed.extend(change.names().filter(|(of, _)| *of != dir));
            }
        }
        concerned
    }

    /// Brings the pending changes to the disk that a sync of `dir` concerns, but for those that were lost, and what rests on them.
    pub(super) fn sync_dir(&mut self, dir: DirId) {
        let concerned = self.concerned(dir);
        let mut lost: HashSet<(DirId, Name)> = HashSet::new();
        for (change, concerned) in std::mem::take(&mut self.pending).into_iter().zip(concerned) {
            if change.is_lost || change.names().any(|name| lost.contains(&name)) {
                lost.extend(change.names());
                self.pending.push(change);
            } else if concerned {
                for edit in change.edits() {
                    self.edit_durable(edit);
                }
            } else {
                self.pending.push(change);
            }
        }
    }

    /// Has the next sync of `dir` not bring to the disk what one would now.
    pub(super) fn lose_names(&mut self, dir: DirId) {
        let concerned = self.concerned(dir);
        for (change, concerned) in self.pending.iter_mut().zip(concerned) {
            change.is_lost |= concerned;
        }
    }

    /// Bytes that all files take.
    pub(super) fn allocated(&self) -> u64 {
        let nodes = self.dirs.iter().flat_map(|dir| dir.now.values());
        let files = nodes.filter_map(|node| match node {
            Node::File(inode) => Some((inode.id, inode)),
            Node::Dir(_) => None,
        });
        // Each once, however many names it has.
        let files: BTreeMap<u64, &Arc<Inode>> = files.collect();
        let bytes = files.values().map(|f| f.state.read().allocated_to(0));
        bytes.sum()
    }

    pub(super) fn sync_all(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            for edit in change.edits() {
                self.edit_durable(edit);
            }
        }
        for dir in &self.dirs {
            for node in dir.now.values() {
                if let Node::File(inode) = node {
                    inode.state.write().sync();
                }
            }
        }
    }

    /// The same tree again, with unsynced changes and bytes still unsynced.
    pub(super) fn fork(&self) -> Self {
        let mut files: HashMap<u64, Arc<Inode>, foldhash::fast::FixedState> = HashMap::default();
        let mut copy_node = |node: &Node| match node {
            Node::Dir(dir) => Node::Dir(*dir),
            Node::File(inode) => {
                let copy = files.entry(inode.id).or_insert_with(|| {
                    let state = RwLock::new(inode.state.read().clone());
                    Arc::new(Inode {
                        id: inode.id,
                        state,
                    })
                });
                Node::File(Arc::clone(copy))
            }
        };
        let mut copy_names = |names: &Names| -> Names {
            names
                .iter()
                .map(|(name, node)| (Arc::clone(name), copy_node(node)))
                .collect()
        };
        let dirs = self
            .dirs
            .iter()
            .map(|dir| Dir {
                now: copy_names(&dir.now),
                durable: copy_names(&dir.durable),
            })
            .collect();
        let mut copy_edit = |edit: &Edit| Edit {
            dir: edit.dir,
            name: Arc::clone(&edit.name),
            node: edit.node.as_ref().map(&mut copy_node),
        };
        let pending = self
            .pending
            .iter()
            .map(|change| Change {
                edit: copy_edit(&change.edit),
                second: change.second.as_ref().map(&mut copy_edit),
                is_lost: change.is_lost,
            })
            .collect();
        Self {
            dirs,
            pending,
            next_inode: self.next_inode,
        }
    }

    /// What a power cut leaves: the durable names, with a seed also some of the pending
    /// changes, each only if every earlier one of the same names is kept.
    pub(super) fn after_power_cut(&self, cut: PowerCut) -> Self {
        let mut durable: Vec<Names> = self.dirs.iter().map(|dir| dir.durable.clone()).collect();
        let odds = match cut {
            PowerCut::DropUnsynced => None,
            PowerCut::KeepAll => Some((0, &[100][..])),
            PowerCut::Torn { seed } => Some((seed, &[0, 50, 50, 90, 100][..])),
            PowerCut::Names { seed } => Some((seed, &[0, 30, 60, 90][..])),
            PowerCut::Tail { seed, .. } => Some((seed, &[100][..])),
        };
        if let Some((seed, odds)) = odds {
            let mut random = Random::of(seed, 0);
            let keep = odds[random.below(odds.len())];
            let mut dropped: HashSet<(DirId, &str)> = HashSet::new();
            for change in &self.pending {
                // Drawn in any case, so that one drop does not change the later draws.
                let kept = random.percent(keep)
                    && !change
                        .edits()
                        .any(|edit| dropped.contains(&(edit.dir, &*edit.name)));
                for edit in change.edits() {
                    match (kept, &edit.node) {
                        (false, _) => {
                            dropped.insert((edit.dir, &*edit.name));
                        }
                        (true, Some(node)) => {
                            durable[edit.dir].insert(Arc::clone(&edit.name), node.clone());
                        }
                        (true, None) => {
                            durable[edit.dir].remove(&edit.name);
                        }
                    }
                }
            }
        }
        let mut files: HashMap<u64, Arc<Inode>, foldhash::fast::FixedState> = HashMap::default();
        let mut tree = Self::new();
        tree.next_inode = self.next_inode;
        // Old directory and its new number; what no name leads to is gone.
        let mut to_copy = vec![(ROOT, ROOT)];
        while let Some((from, to)) = to_copy.pop() {
            let mut names = Names::new();
            for (name, node) in std::mem::take(&mut durable[from]) {
                let node = match node {
                    Node::Dir(dir) => {
                        let id = tree.dirs.len();
                        tree.dirs.push(Dir::default());
                        to_copy.push((dir, id));
                        Node::Dir(id)
                    }
                    Node::File(inode) => {
                        let copy = files.entry(inode.id).or_insert_with(|| {
                            let state = inode.state.read();
                            let state = match cut {
                                PowerCut::DropUnsynced => state.durable(),
                                PowerCut::KeepAll | PowerCut::Names { .. } => state.written(),
                                PowerCut::Torn { seed } => {
                                    state.torn(&mut Random::of(seed, inode.id))
                                }
                                PowerCut::Tail { seed, fill } => {
                                    state.tail(&mut Random::of(seed, inode.id), fill)
                                }
                            };
                            Arc::new(Inode {
                                id: inode.id,
                                state: RwLock::new(state),
                            })
                        });
                        copy.state.write().links += 1;
                        Node::File(Arc::clone(copy))
                    }
                };
                names.insert(name, node);
            }
            tree.dirs[to] = Dir {
                now: names.clone(),
                durable: names,
            };
        }
        tree
    }
}
