"""One YAML file is one experiment: sections, layers, the table of rules. No torch, and nothing of the folders above."""

from trustmopd.recipe.recipe import OWNED_ELSEWHERE, Asking, QuestionFile, Recipe, load_recipe
from trustmopd.recipe.teacher_source import TeacherSource
from trustmopd.recipe.yaml_layers import RecipeError

__all__ = [
    "OWNED_ELSEWHERE",
    "Asking",
    "QuestionFile",
    "Recipe",
    "RecipeError",
    "TeacherSource",
    "load_recipe",
]
