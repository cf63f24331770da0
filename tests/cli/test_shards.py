"""The index of a sharded model says where tensors are; what else lies in the shards is no fault."""
import json
import shutil

import safetensors_file
from program import GOLDEN


def test_unlisted_and_repeated_tensors(sixfold, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(GOLDEN / "llama_sharded", model)
    index_file = model / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) > 1
    ask = ["--prompt-tokens", "1,2,3", "--max-tokens", 6, "--temperature", 0, "--json"]
    expected = sixfold("generate", model, *ask).json()["token_ids"]
    tensors = {shard: safetensors_file.read(model / shard) for shard in shards}
    # One more tensor that nobody lists, and in every shard a false copy of what another one holds.
    for shard in shards:
        own = tensors[shard]
        mixed = dict(own)
        for other in shards:
            for name, tensor in tensors[other].items():
                if name not in own:
                    mixed[name] = safetensors_file.Tensor(tensor.dtype, tensor.shape, bytes(len(tensor.data)))
        mixed["optimizer.step"] = safetensors_file.Tensor("F32", [1], b"\0\0\0\0")
        safetensors_file.write(model / shard, mixed)
    assert sixfold("generate", model, *ask).json()["token_ids"] == expected
    # A tensor that only the shards know is there as well.
    name = next(iter(tensors[shards[0]]))
    del index["weight_map"][name]
    index_file.write_text(json.dumps(index))
    for shard in shards:
        safetensors_file.write(model / shard, tensors[shard])
    assert sixfold("generate", model, *ask).json()["token_ids"] == expected
    # One that is listed and lies nowhere is an error that names it.
    index["weight_map"]["nowhere"] = shards[0]
    index_file.write_text(json.dumps(index))
    refused = sixfold("generate", model, *ask)
    assert refused.code == 3 and "'nowhere' is listed for shard" in refused.err, refused.err
