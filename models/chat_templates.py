"""The built-in chat templates, for tokenizers without one, and how to select one."""

from __future__ import annotations

from collections.abc import Mapping

_CHATML = """\
{%- for message in messages -%}
{%- if loop.first and message.role != 'system' -%}{{ default_system }}{%- endif -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def _chatml(default_system: str | None = None) -> str:
    """Return a ChatML template with an optional default system message."""
    system = f"<|im_start|>system\\n{default_system}<|im_end|>\\n" if default_system else ""
    return _CHATML.replace("{{ default_system }}", f"{{{{ '{system}' }}}}" if system else "")


BUILTIN = {
    "plain": "{%- for message in messages -%}{{ message.content + '\\n' }}{%- endfor -%}",
    "chatml": _chatml(),
    "qwen2.5": _chatml("You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
    "qwen2.5-vl": _chatml("You are a helpful assistant."),
    "smollm2": _chatml("You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
    # Thoughts of earlier turns are dropped. The last completion, if there is one, keeps them, even if they are empty.
    "qwen3": """\
{%- set ns = namespace(last_user=messages|length - 1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- set content = message.content -%}{%- set thoughts = '' -%}
{%- if message.role == 'assistant' and '</think>' in content -%}
{%- set thoughts = content.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and loop.index0 > ns.last_user and (loop.last or thoughts) -%}
{{ '<think>\\n' + thoughts + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else -%}{{ content }}{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}
{%- endif -%}
""",
    "llama2": """\
{%- set system = '' -%}
{%- if messages[0].role == 'system' -%}
{%- set system = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{{ bos_token + '[INST] ' + (system if loop.first else '') + message.content.strip() + ' [/INST]' }}
{%- elif message.role == 'assistant' -%}{{ ' ' + message.content.strip() + ' ' + eos_token }}
{%- else -%}{{ raise_exception('the role ' + message.role + ' is only accepted first') }}{%- endif -%}
{%- endfor -%}
""",
    "llama3": """\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content.strip() + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif -%}
""",
    "mistral": """\
{{- bos_token -}}
{%- set system = '' -%}
{%- if messages[0].role == 'system' -%}
{%- set system = messages[0].content + '\\n\\n' -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{ '[INST] ' + (system if loop.first else '') + message.content + ' [/INST]' }}
{%- elif message.role == 'assistant' -%}{{ ' ' + message.content + eos_token }}
{%- else -%}{{ raise_exception('the role ' + message.role + ' is only accepted first') }}{%- endif -%}
{%- endfor -%}
""",
    "phi3": """\
{%- for message in messages -%}
{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- else -%}{{ eos_token }}{%- endif -%}
""",
    "zephyr": """\
{%- for message in messages -%}
{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}
""",
    "dialogpt": "{%- for message in messages -%}{{ message.content + eos_token }}{%- endfor -%}",
}


def guess_style(tokens: Mapping[str, int]) -> str:
    """Return the built-in style that the special tokens of a vocabulary (token -> id) suggest."""
    if "<|im_start|>" in tokens:
        if "<think>" in tokens:
            return "qwen3"
        return "qwen2.5" if "<|object_ref_start|>" in tokens else "chatml"
    if "<|start_header_id|>" in tokens:
        return "llama3"
    return "phi3" if "<|end|>" in tokens else "plain"
