"""`charcnn.sklearn`: the estimator by itself, and in what scikit-learn makes of estimators."""

import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import by_turns

pytest.importorskip("sklearn", minversion="1.6", reason="the estimator needs scikit-learn")

import joblib
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

from charcnn import Classifier, Config
from charcnn.sklearn import CharCNNClassifier

SMALLEST = Config(length=123, channels=4, units=8)
WORDS = {"sport": "goal match team", "money": "bank profit market"}
pytestmark = pytest.mark.filterwarnings(
    "ignore:nothing was learned", "ignore:.*too few to tell", "ignore:no temperature"
)


def tiny(**parameters):
    how = {"config": SMALLEST, "recipe": {"epochs": 1, "batch": 8}, "device": "cpu", "random_state": 0}
    return CharCNNClassifier(**{**how, **parameters})


def rows(count=24):
    rng = np.random.default_rng(0)
    labels = [list(WORDS)[n % 2] for n in range(count)]
    return [f"the {rng.choice(WORDS[label].split())} of today" for label in labels], labels


TEXTS, LABELS = rows()


@pytest.fixture(scope="module")
def fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tiny().fit(TEXTS, LABELS)


def test_fit_predict_and_score(fitted):
    shares = fitted.predict_proba(TEXTS)
    assert fitted.classes_.tolist() == ["money", "sport"]
    assert shares.dtype == np.float64
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-12)
    assert fitted.predict(TEXTS).tolist() == fitted.classes_[shares.argmax(1)].tolist()
    assert fitted.score(TEXTS, LABELS) == np.mean(fitted.predict(TEXTS) == LABELS)


def test_the_same_state_gives_the_same_network_and_another_another(fitted):
    shares = fitted.predict_proba(TEXTS)
    assert np.array_equal(tiny().fit(np.array(TEXTS), np.array(LABELS)).predict_proba(TEXTS), shares)
    assert not np.array_equal(tiny(random_state=1).fit(TEXTS, LABELS).predict_proba(TEXTS), shares)


def test_parameters_are_kept_as_they_are(fitted):
    other = clone(fitted)
    assert other.get_params() == fitted.get_params()
    assert other.set_params(class_weight="balanced", valid=0.2).get_params()["valid"] == 0.2
    with pytest.raises(NotFittedError):
        other.predict(TEXTS)


@pytest.mark.parametrize("through", ["pickle", "joblib", "file"])
def test_a_fitted_one_is_kept(fitted, tmp_path, through):
    path = tmp_path / "m.safetensors"
    if through == "file":
        fitted.classifier_.save(path)
        again = Classifier.load(path, device="cpu")
        np.testing.assert_allclose(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS), atol=1e-6)
        return
    if through == "joblib":
        joblib.dump(fitted, path)
    again = joblib.load(path) if through == "joblib" else pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))


@by_turns
def test_predictions_need_no_torch(fitted, tmp_path):
    (tmp_path / "m.pickle").write_bytes(pickle.dumps(fitted))
    code = (
        "import pickle, sys; from pathlib import Path;"
        "print(pickle.loads(Path(sys.argv[1]).read_bytes()).predict(['a goal'])[0], 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, tmp_path / "m.pickle"]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [fitted.predict(["a goal"])[0], "False"], done.stderr


@pytest.mark.parametrize("y", [np.array([7, -3] * 12), np.array([True, False] * 12), np.array([" a", "a"] * 12)])
def test_classes_of_any_type(y):
    model = tiny().fit(TEXTS, y)
    assert model.classes_.tolist() == np.unique(y).tolist()
    assert model.classes_.dtype == model.predict(TEXTS).dtype == y.dtype


def test_tables(fitted):
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    table = pandas.DataFrame({"title": [text[:5] for text in TEXTS], "body": [text[6:] for text in TEXTS], "n": 1})
    joined = [f"{text[:5]} {text[6:]}" for text in TEXTS]
    model = tiny(text_columns=["title", "body"]).fit(table, pandas.Series(LABELS))
    expected = tiny().fit(joined, LABELS).predict_proba(joined)
    assert np.array_equal(model.predict_proba(table), expected)
    assert np.array_equal(model.predict_proba(pyarrow.Table.from_pandas(table)), expected)
    numbered = clone(model).set_params(text_columns=[0, 1]).fit(table.to_numpy(), LABELS)
    assert np.array_equal(numbered.predict_proba(table.to_numpy()), expected)
    assert np.array_equal(fitted.predict(pandas.DataFrame({"text": TEXTS})), fitted.predict(pandas.Series(TEXTS)))
    with pytest.raises(ValueError, match=r"X has 3 columns: need one, or text_columns"):
        tiny().fit(table, LABELS)
    with pytest.raises(ValueError, match=r"text_columns holds 'titel': X has columns title, body, n"):
        tiny(text_columns=["titel"]).fit(table, LABELS)
    with pytest.raises(ValueError, match=r"X\['n'\] holds 1 in row 0: need str"):
        tiny(text_columns=["n"]).fit(table, LABELS)


def test_weights_of_classes_and_of_texts():
    doubled = [2.0 if label == "sport" else 1.0 for label in LABELS]
    by_class = tiny(class_weight={"sport": 2, "money": 1}).fit(TEXTS, LABELS).predict_proba(TEXTS)
    assert np.array_equal(by_class, tiny().fit(TEXTS, LABELS, sample_weight=doubled).predict_proba(TEXTS))
    assert not np.array_equal(by_class, tiny().fit(TEXTS, LABELS).predict_proba(TEXTS))
    rare = LABELS[:16] + ["money"] * 8
    balanced, alike = (tiny(class_weight=how).fit(TEXTS, rare) for how in ("balanced", None))
    assert balanced.classifier_.metadata["training"]["recipe"]["balance"]
    assert not alike.classifier_.metadata["training"]["recipe"]["balance"]


def test_a_precision_is_that_of_predictions():
    with pytest.raises(ValueError, match="fp8"):
        tiny(precision="fp8").fit(TEXTS, LABELS)


def test_in_a_pipeline_and_a_grid():
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    pipeline = make_pipeline(lower, tiny())
    grid = GridSearchCV(
        pipeline, {"charcnnclassifier__recipe": [{"epochs": 1}, {"epochs": 2}]}, cv=2, error_score="raise"
    )
    grid.fit(np.array(TEXTS), LABELS)
    assert grid.best_estimator_.predict(TEXTS[:2]).shape == (2,)
    assert len(grid.cv_results_["mean_test_score"]) == 2


def test_in_cross_validation_and_calibration(fitted):
    assert cross_val_score(tiny(), TEXTS, LABELS, cv=2, error_score="raise").shape == (2,)
    calibrated = CalibratedClassifierCV(tiny(), cv=2).fit(TEXTS, LABELS)
    assert calibrated.predict_proba(TEXTS).shape == (24, 2)
    pytest.importorskip("matplotlib").use("agg")
    from sklearn.metrics import ConfusionMatrixDisplay

    drawn = ConfusionMatrixDisplay.from_estimator(fitted, TEXTS, LABELS)
    assert drawn.confusion_matrix.sum() == 24


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": ["a"] * 24}, "y holds one class, .*a.*: need at least two"),
        ({"y": LABELS[:5]}, "X holds 24 texts and y 5 labels"),
        ({"y": np.linspace(0, 1, 24)}, "Unknown label type: continuous"),
        ({"X": [""] * 24}, r"texts\[0\] is empty or blank"),
        ({"X": [3] * 24}, r"texts\[0\] is a int"),
        ({"sample_weight": [1.0]}, "sample_weight has shape"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        tiny().fit(**{"X": TEXTS, "y": LABELS, **change})


def test_checks_of_scikit_learn_that_need_no_numbers():
    """`check_estimator` leaves estimators of texts at a copy; its other checks that take no data are called here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator_checks.check_estimator(tiny())
    tags = tiny().__sklearn_tags__()
    assert (tags.input_tags.string, tags.input_tags.two_d_array, tags.estimator_type) == (True, False, "classifier")
    for name in (
        *("estimator_cloneable", "estimator_repr", "get_params_invariance", "mixin_order", "valid_tag_types"),
        *("no_attributes_set_in_init", "parameters_default_constructible", "set_params"),
        "do_not_raise_errors_in_init_or_set_params",
    ):
        getattr(estimator_checks, f"check_{name}")("CharCNNClassifier", tiny())


def test_a_missing_package_is_named():
    code = "import sys; sys.modules['sklearn'] = None; import charcnn.sklearn"
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert "ImportError: charcnn.sklearn needs scikit-learn: " in done.stderr
    assert "install -e '.[sklearn]'" in done.stderr


PAGE = Path(__file__).parent.parent / "docs" / "sklearn.md"


@by_turns
def test_the_page_prints_what_it_shows(capsys):
    blocks = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    names = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for code, printed in blocks:
            exec(code, names)
            assert capsys.readouterr().out == printed
