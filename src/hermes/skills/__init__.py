"""Skills: written instructions for kinds of work, bundled or written by the user."""

from hermes.skills.catalogue import Catalogue, list_skills, read_skill_file, skill_files
from hermes.skills.skill import Skill, SkillError, SkillOrigin

__all__ = ["Catalogue", "Skill", "SkillError", "SkillOrigin", "list_skills", "read_skill_file", "skill_files"]
