# One command per purpose; each sets up what it needs in .venv first, and again only after a change.
#   make run [ARGS=--once]   make test [ARGS='-k bind']   make bench   make lint   make dist

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PRODUCT := $(VENV)/.product-installed
TOOLS := $(VENV)/.tools-installed
CORE := $(VENV)/.core-built

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
BUILD_REQUIRES = $(BIN)/python -c 'import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'

.NOTPARALLEL:
.PHONY: run test bench lint dist

run: $(PRODUCT) $(CORE)
	@$(BIN)/kvitej serve --cluster three-tenants $(ARGS)

test: $(TOOLS) $(CORE)
	@$(BIN)/python -m tests.controlplane build
	$(BIN)/python -m pytest --durations=10 $(ARGS)

bench: $(TOOLS) $(CORE)
	$(BIN)/python -m bench all --check $(ARGS)

lint: $(TOOLS)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint _core

dist: $(TOOLS)
	rm -rf dist
	$(BIN)/python -m build

$(PRODUCT): pyproject.toml setup.py | $(BIN)/python
	@echo 'Installing kvitej and building its native core; this takes a minute or two.'
	@$(BUILD_REQUIRES) | $(PIP_INSTALL) --requirement /dev/stdin
	@$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@ $(CORE)

$(TOOLS): pyproject.toml setup.py | $(BIN)/python
	@echo 'Installing kvitej with what its tests, benches and checks need; this takes two or three minutes.'
	@$(BUILD_REQUIRES) | $(PIP_INSTALL) --requirement /dev/stdin
	@$(PIP_INSTALL) --no-build-isolation --editable '.[test,bench,lint]' build
	@touch $@ $(PRODUCT) $(CORE)

# Listed after an installation, which builds the core too and so leaves nothing to do here.
$(CORE): $(wildcard _core/*.pyx _core/*.pxd)
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "kvitej needs Python 3.11 or later, and there is no $(PYTHON) here:" \
		"install one (Debian, Ubuntu: apt install python3-dev python3-venv) or name it (make PYTHON=python3.12)."; exit 1; }
	@$(PYTHON) -c "$$PREREQUISITES"
	@$(PYTHON) -m venv $(VENV)

define PREREQUISITES
import os, shlex, shutil, sys, sysconfig
from importlib.util import find_spec

name = "python{}.{}".format(*sys.version_info)
compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
missing = []
if sys.version_info < (3, 11):
    missing.append("Python 3.11 or later ({} is {}): install it and name it, as in make PYTHON=python3.12".format(
        sys.executable, sys.version.split()[0]))
elif find_spec("ensurepip") is None or find_spec("venv") is None:
    missing.append("the venv module of {0} (Debian, Ubuntu: apt install {0}-venv)".format(name))
if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
    missing.append("the headers of {0} (Debian, Ubuntu: apt install {0}-dev; Fedora: dnf install python3-devel)".format(name))
if shutil.which(compiler) is None:
    missing.append("a C compiler, {} (Debian, Ubuntu: apt install gcc libc6-dev; Fedora: dnf install gcc)".format(compiler))
if missing:
    sys.exit("kvitej cannot be built yet. What is missing:\n- " + "\n- ".join(missing))
endef
export PREREQUISITES
