"""Skills: written instructions for kinds of work, bundled or the user's own."""

from hermes.skills.catalogue import Catalogue, list_skills, read_skill_file, skill_files
from hermes.skills.skill import Origin, Skill, SkillError

__all__ = ["Catalogue", "Origin", "Skill", "SkillError", "list_skills", "read_skill_file", "skill_files"]
