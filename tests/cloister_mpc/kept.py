"""Programs as local parties keep them: what one test compiled, or an earlier run with the same code, is there."""

from __future__ import annotations

from cloister_mpc.local_parties import local_programs
from cloister_mpc.messages import GenerationSpec
from cloister_mpc.model.program_store import ProgramStore
from cloister_mpc.model.programs import Programs, programs_for
from cloister_mpc.model.shape import ModelShape
from cloister_mpc.party.weight_store import program_folder


def kept_programs(shape: ModelShape, spec: GenerationSpec) -> Programs:
    folder = program_folder(local_programs())
    return programs_for(shape, spec, ProgramStore(folder) if folder else None)
