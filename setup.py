"""Builds the native core; everything else about the package stands in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    ext_modules=cythonize(
        [Extension("_core.*", ["_core/*.pyx"], extra_compile_args=["-O3"])],
        compiler_directives={"language_level": 3, "binding": True},
    )
)
