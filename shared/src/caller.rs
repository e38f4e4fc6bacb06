//! Who is calling, what they may do, and which name goes into the rows (contract 4).

use serde_json::Value;

/// Longest `x-headgate-actor`, in characters (contract 4).
const ACTOR_MAX: usize = 128;

/// A right that a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// `headgate/read`: every GET.
    Read,
    /// `headgate/write`: everything else.
    Write,
    /// `headgate/links`: reading link rows only.
    Links,
}

impl Scope {
    /// The scope as it stands in a token.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "headgate/read",
            Scope::Write => "headgate/write",
            Scope::Links => "headgate/links",
        }
    }
}

/// The authenticated caller of an HTTP request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// A person with a token checked by the JWT authorizer.
    Jwt {
        /// Recorded name: `email`, else `sub`.
        name: String,
        /// Scopes of the token.
        scopes: Vec<String>,
    },
    /// A principal checked by the IAM authorizer. It holds every scope; which routes it may call is the
    /// gateway's IAM policy.
    Iam {
        /// Recorded name: the session part of the ARN, with the person in front if it passed one.
        name: String,
    },
    /// The local stack, where `HEADGATE_AUTH=local` turns the check off.
    Local,
}

/// Why a caller was not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// 401: nobody is calling.
    Unauthenticated,
    /// 403: the token lacks this scope.
    Forbidden(&'static str),
    /// 400: the actor header is not a name.
    BadActor,
}

impl Caller {
    /// The caller of a request, from what the gateway checked.
    ///
    /// # Errors
    /// Nobody is calling, or an IAM caller passed an actor that is not 1-128 printable characters.
    pub fn of(authorizer: Option<&Value>, actor: Option<&str>, auth_is_local: bool) -> Result<Self, Refusal> {
        let text = |v: Option<&Value>| {
            v.and_then(Value::as_str)
                .filter(|s| !s.is_empty())
                .map(str::to_owned)
        };
        if let Some(claims) = authorizer.and_then(|a| a.pointer("/jwt/claims")) {
            let name = text(claims.get("email")).or_else(|| text(claims.get("sub")));
            let Some(name) = name else {
                return Err(Refusal::Unauthenticated);
            };
            let mut scopes: Vec<String> = text(claims.get("scope"))
                .map(|s| s.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default();
            if scopes.is_empty() {
                // The gateway also lists the scopes it matched.
                let listed = authorizer
                    .and_then(|a| a.pointer("/jwt/scopes"))
                    .and_then(Value::as_array);
                scopes = listed
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect();
            }
            return Ok(Caller::Jwt { name, scopes });
        }
        if let Some(arn) = text(authorizer.and_then(|a| a.pointer("/iam/userArn"))) {
            let session = arn.rsplit(['/', ':']).next().unwrap_or(&arn).to_owned();
            let name = match actor {
                None => session,
                Some(person) if is_name(person) => format!("{person} (via {session})"),
                Some(_) => return Err(Refusal::BadActor),
            };
            return Ok(Caller::Iam { name });
        }
        if auth_is_local {
            return Ok(Caller::Local);
        }
        Err(Refusal::Unauthenticated)
    }

    /// The name recorded in rows.
    pub fn actor(&self) -> &str {
        match self {
            Caller::Jwt { name, .. } | Caller::Iam { name } => name,
            Caller::Local => "local",
        }
    }

    /// Does the caller hold the scope?
    pub fn has(&self, scope: Scope) -> bool {
        match self {
            Caller::Jwt { scopes, .. } => scopes.iter().any(|s| s == scope.as_str()),
            Caller::Iam { .. } | Caller::Local => true,
        }
    }

    /// Lets the caller through, or says which scope is missing.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`] with the scope.
    pub fn require(&self, scope: Scope) -> Result<(), Refusal> {
        if self.has(scope) {
            Ok(())
        } else {
            Err(Refusal::Forbidden(scope.as_str()))
        }
    }
}

/// 1-128 characters, none of them a control character.
fn is_name(s: &str) -> bool {
    let n = s.chars().count();
    (1..=ACTOR_MAX).contains(&n) && !s.chars().any(char::is_control) && !s.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_recorded_name_is_email_then_sub_then_session() {
        let jwt = |c: Value| json!({"jwt": {"claims": c}});
        let a = jwt(json!({"sub": "s-1", "email": "ana@example.org", "scope": "headgate/read"}));
        let c = Caller::of(Some(&a), Some("forged"), false).unwrap();
        assert_eq!(c.actor(), "ana@example.org");
        assert!(c.has(Scope::Read) && !c.has(Scope::Write));
        let b = jwt(json!({"sub": "s-1"}));
        assert_eq!(Caller::of(Some(&b), None, false).unwrap().actor(), "s-1");
        let iam = json!({"iam": {"userArn": "arn:aws:sts::123456789012:assumed-role/dash/i-9"}});
        assert_eq!(Caller::of(Some(&iam), None, false).unwrap().actor(), "i-9");
        assert_eq!(
            Caller::of(Some(&iam), Some("ana"), false).unwrap().actor(),
            "ana (via i-9)"
        );
    }

    #[test]
    fn nobody_is_refused_and_a_bad_actor_too() {
        assert_eq!(Caller::of(None, None, false), Err(Refusal::Unauthenticated));
        assert_eq!(
            Caller::of(Some(&json!({"jwt": {"claims": {}}})), None, false),
            Err(Refusal::Unauthenticated)
        );
        let iam = json!({"iam": {"userArn": "arn:aws:iam::1:user/u"}});
        for bad in ["", "a\nb", "   ", &"x".repeat(129)] {
            assert_eq!(
                Caller::of(Some(&iam), Some(bad), false),
                Err(Refusal::BadActor),
                "{bad:?}"
            );
        }
        assert_eq!(Caller::of(None, None, true), Ok(Caller::Local));
    }
}
