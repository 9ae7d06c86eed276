//! A member's recorded cases as its executors are held to them: those of a folder, and the released members' built-in
//! ones. A file is read when its turn comes, and again in every round: none stays in memory.

use std::io;
use std::path::{Path, PathBuf};

use synod_config::Gates;

use super::case::Case;
use super::compare::{CaseReport, Prepared};
use super::folder::case_files;
use super::released::{Asked, Released};
use crate::executor::{Cases, Drift, OpenCase, Unopened};
use crate::family::vela::Vela;
use crate::family::{Logits, Plan};
use crate::member::Excerpt;

/// The recorded cases of one member.
pub struct Recordings {
    /// As released: cases know nothing of a deployment.
    vela: Vela,
    model_name: String,
    gates: Gates,
    names: Vec<String>,
    sources: Vec<Source>,
}

enum Source {
    Released(Released),
    File(PathBuf),
}

/// Why a folder has no recordings. One line.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{}: {source}", .folder.display())]
    Io { folder: PathBuf, source: io::Error },
    #[error("{}: expected recorded cases (*.json), found none; name the folder that holds them", .folder.display())]
    Empty { folder: PathBuf },
}

impl Recordings {
    /// The cases in `folder`, if one is given, and the built-in ones of the member that calls itself `model_name`.
    /// Files are listed, not read. None if there is neither.
    ///
    /// # Errors
    /// [`FolderError`], of a folder that cannot be read or holds no case.
    pub fn find(
        folder: Option<&Path>,
        model_name: &str,
        vela: &Vela,
        gates: Gates,
    ) -> Result<Option<Self>, FolderError> {
        let released =
            Released::find(model_name).map(|released| (Released::NAME.to_owned(), Source::Released(released)));
        let files = folder.map(files).transpose()?.unwrap_or_default();
        let files = files.into_iter().map(|file| (name(&file), Source::File(file)));
        let (names, sources): (Vec<_>, Vec<_>) = released.into_iter().chain(files).unzip();
        let (vela, model_name) = (vela.as_released(), model_name.to_owned());
        Ok((!names.is_empty()).then_some(Self { vela, model_name, gates, names, sources }))
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, FolderError> {
    let files = case_files(folder).map_err(|source| FolderError::Io { folder: folder.to_owned(), source })?;
    if files.is_empty() { Err(FolderError::Empty { folder: folder.to_owned() }) } else { Ok(files) }
}

fn name(file: &Path) -> String {
    Excerpt(&file.file_stem().unwrap_or_default().to_string_lossy()).to_string()
}

impl Cases for Recordings {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn gates(&self) -> Gates {
        self.gates
    }

    fn open(&self, number: usize) -> Result<Option<Box<dyn OpenCase + '_>>, Unopened> {
        match &self.sources[number] {
            Source::Released(released) => {
                let asked =
                    Released::ask(&self.vela).map_err(|difference| Unopened::Differs(difference.to_string()))?;
                Ok(Some(Box::new(OpenReleased { released, asked, gates: self.gates })))
            }
            Source::File(file) => {
                let case = Case::read(file).map_err(|error| Unopened::Unreadable(error.to_string()))?;
                let prepared = case.prepare(&self.model_name, &self.vela);
                let prepared = prepared.map_err(|difference| Unopened::Differs(difference.to_string()))?;
                let gates = self.gates;
                Ok(prepared.map(|prepared| -> Box<dyn OpenCase> { Box::new(OpenFile { case, prepared, gates }) }))
            }
        }
    }
}

struct OpenFile {
    case: Case,
    prepared: Prepared,
    gates: Gates,
}

struct OpenReleased<'a> {
    released: &'a Released,
    asked: Asked,
    gates: Gates,
}

impl OpenCase for OpenFile {
    fn plan(&self) -> &Plan {
        &self.prepared.plan
    }

    fn judge(&self, logits: &[Vec<Logits>]) -> Drift {
        drift(self.case.judge(&self.prepared, logits, self.gates))
    }
}

impl OpenCase for OpenReleased<'_> {
    fn plan(&self) -> &Plan {
        &self.asked.plan
    }

    fn judge(&self, logits: &[Vec<Logits>]) -> Drift {
        drift(self.released.judge(&self.asked, logits, self.gates))
    }
}

fn drift(report: CaseReport) -> Drift {
    let difference = report.difference.map(|difference| difference.to_string());
    Drift { logit: report.logits, answer: report.own, difference }
}
